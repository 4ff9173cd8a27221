"""What the log and the API hold: closed, versioned, frozen types. Start at `envelope`."""
