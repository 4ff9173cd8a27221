"""The log on Apache Kafka, and group membership by a Kafka consumer group.

Start reading at `log`. No module outside this package imports aiokafka.
"""
