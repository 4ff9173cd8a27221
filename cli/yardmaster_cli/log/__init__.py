"""The event log for commands: choose a log, read it in order, set up a new one, cut one."""
