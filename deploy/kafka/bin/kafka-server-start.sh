#!/bin/sh
# The broker of the plain Apache layout, as far as start.sh uses it.
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS:--Xmx512m} ${KAFKA_JVM_PERFORMANCE_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1} \
  -cp '/opt/kafka/libs/*' kafka.Kafka "$@"
