"""The event log as commands use it:
which log, in which order its records are read, how a new one is set up.
"""
