"""The commands of `yard`: a module for each command or group of commands."""
