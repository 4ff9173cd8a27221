"""The arguments of `yard simulate`."""
