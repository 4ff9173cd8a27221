"""The embedded mode, `yard dev`: every service in one process over one data directory."""
