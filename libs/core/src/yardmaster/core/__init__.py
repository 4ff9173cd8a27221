"""The pure machines of Yardmaster: scheduling, admission, the audit of the log."""
