#!/bin/sh
# The storage tool of the plain Apache layout, as far as start.sh uses it.
exec java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' kafka.tools.StorageTool "$@"
