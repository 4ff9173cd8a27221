"""The log in one SQLite file, for `yard dev`, the simulator and tests.

Start reading at `log`. No module outside this package opens the file.
"""
