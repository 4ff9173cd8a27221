"""The node agent: runs tasks, watches devices and keeps the ledger of what it runs.

Start reading at `agent`; `executors.port` defines how tasks are run. Must not import another
service, or start a task that its ledger does not hold.
"""
