"""The node agent: runs tasks, watches devices and keeps a ledger of its tasks.

Start reading at `agent`; `executors.port` defines how tasks are run. The package must not import
another service, and must not start a task that is not in its ledger.
"""
