#!/bin/sh
# Run a Kafka broker (and controller) in an image with the plain Apache layout, /opt/kafka: write the
# settings, format the storage once, start. Compose, Kubernetes and the tests all use it.
#
# The folder $KAFKA_DATA (/var/lib/kafka) has the same layout as with `yard up --local`, so that either can
# continue with the other's data.
set -eu

data=${KAFKA_DATA:-/var/lib/kafka}
# Advertised addresses: inside the cluster's network, and outside of it (may be empty).
inside=${KAFKA_INSIDE:?host:port for clients inside}
outside=${KAFKA_OUTSIDE:-}
# With several brokers: id@host:9093 of each, separated by commas. Empty: the only broker.
voters=${KAFKA_VOTERS:-}
node=${KAFKA_NODE_ID:-1}
replication=${KAFKA_REPLICATION:-1}
min_isr=${KAFKA_MIN_ISR:-1}

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
listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT
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

if [ ! -f "${data}/data/meta.properties" ]; then
  # shellcheck disable=SC2086
  /opt/kafka/bin/kafka-storage.sh format ${new} --config "${data}/server.properties"
fi
exec /opt/kafka/bin/kafka-server-start.sh "${data}/server.properties"
