"""Job files: read and checked for `Client.submit` and `yard submit`."""
