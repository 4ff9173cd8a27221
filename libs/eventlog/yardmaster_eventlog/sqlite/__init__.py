"""The log in one SQLite file, for the embedded mode and for recorded runs: start at `log`."""
