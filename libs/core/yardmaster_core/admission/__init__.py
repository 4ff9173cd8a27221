"""The admission machine: quota's judgement of every request. Start at `machine`, then `decide`."""
