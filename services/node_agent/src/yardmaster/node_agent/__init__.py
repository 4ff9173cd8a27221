"""The agent of Yardmaster on a node: runs tasks, counts devices, keeps a ledger."""
