"""The event log: its port, its adapters for memory, SQLite and Kafka, the codec, and snapshots.

Start reading at `port`, then `errors`. Must not depend on what an event means; only `kafka` imports
aiokafka.
"""
