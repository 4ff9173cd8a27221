"""Job files: read and checked for `yard submit`, written by `yard show --spec`."""
