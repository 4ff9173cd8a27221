#!/bin/sh
# Run a Kafka broker (and controller) in an image with the plain Apache layout, /opt/kafka: write the
# settings, format the storage once, start. Compose, Kubernetes and the tests all use it.
#
# The folder $KAFKA_DATA (/var/lib/kafka) has the same layout as with `yard up --local`, so that either can
# continue with the other's data.
set -eu
umask 077

data=${KAFKA_DATA:-/var/lib/kafka}
# Advertised addresses: inside the cluster's network, and outside of it (may be empty).
inside=${KAFKA_INSIDE:?host:port for clients inside}
outside=${KAFKA_OUTSIDE:-}
# With several brokers: id@host:9093 of each, separated by commas. Empty: the only broker.
voters=${KAFKA_VOTERS:-}
node=${KAFKA_NODE_ID:-1}
replication=${KAFKA_REPLICATION:-1}
min_isr=${KAFKA_MIN_ISR:-1}
# The file with the password of the user `admin`, for the brokers themselves and for `yard setup`, which
# creates all other users. KAFKA_OPEN_TO_ALL=1 accepts every client instead: for tests only.
if [ "${KAFKA_OPEN_TO_ALL:-0}" = 1 ]; then
  protocol=PLAINTEXT
else
  protocol=SASL_PLAINTEXT
  admin=$(cat "${KAFKA_ADMIN_PASSWORD_FILE:?the file with the password of the user admin}")
fi

if [ -n "${voters}" ]; then
  controller=':9093'
  quorum="controller.quorum.voters=${voters}"
  new="--cluster-id ${KAFKA_CLUSTER_ID:?the same for all brokers}"
else
  controller='127.0.0.1:9093'
  quorum="controller.quorum.bootstrap.servers=${controller}"
  new="--standalone --cluster-id ${KAFKA_CLUSTER_ID:-$(head -c 16 /dev/urandom | base64 | tr '+/' 'Az' | cut -c 1-22)}"
fi

mkdir -p "${data}/data"
cat >"${data}/server.properties" <<END
# ports ${outside##*:} 9093
process.roles=broker,controller
node.id=${node}
${quorum}
controller.listener.names=CONTROLLER
listeners=INSIDE://:${inside##*:},${outside:+OUTSIDE://:9092,}CONTROLLER://${controller}
advertised.listeners=INSIDE://${inside}${outside:+,OUTSIDE://${outside}}
listener.security.protocol.map=INSIDE:${protocol},OUTSIDE:${protocol},CONTROLLER:${protocol}
inter.broker.listener.name=INSIDE
log.dirs=${data}/data
auto.create.topics.enable=false
default.replication.factor=${replication}
min.insync.replicas=${min_isr}
offsets.topic.replication.factor=${replication}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=${replication}
transaction.state.log.min.isr=${min_isr}
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=${replication}
share.coordinator.state.topic.min.isr=${min_isr}
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
# A killed broker may register again when its session has ended: 9 s by default. The interval is also what
# a request to the controller may take: with less, a broker on a busy machine tries to register for ever.
broker.session.timeout.ms=${KAFKA_SESSION_MS:-3000}
broker.heartbeat.interval.ms=1000
# A small heap runs out otherwise.
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=4194304
log.segment.bytes=${KAFKA_SEGMENT_BYTES:-16777216}
END

if [ "${protocol}" = SASL_PLAINTEXT ]; then
  # Services authenticate with SCRAM and do what their rules allow. Brokers and the administrator use PLAIN:
  # controllers cannot read the stored users before they have a quorum.
  plain="org.apache.kafka.common.security.plain.PlainLoginModule required username=\"admin\" password=\"${admin}\" user_admin=\"${admin}\";"
  cat >>"${data}/server.properties" <<END
sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin
listener.name.controller.sasl.enabled.mechanisms=PLAIN
listener.name.controller.plain.sasl.jaas.config=${plain}
END
  for listener in inside ${outside:+outside}; do
    cat >>"${data}/server.properties" <<END
listener.name.${listener}.plain.sasl.jaas.config=${plain}
listener.name.${listener}.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
END
  done
fi

if [ ! -f "${data}/data/meta.properties" ]; then
  # shellcheck disable=SC2086
  /opt/kafka/bin/kafka-storage.sh format ${new} --config "${data}/server.properties"
fi
exec /opt/kafka/bin/kafka-server-start.sh "${data}/server.properties"
