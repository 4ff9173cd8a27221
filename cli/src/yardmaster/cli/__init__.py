"""The `yard` command of Yardmaster."""
