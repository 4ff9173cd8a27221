"""Compare the core's decisions with recorded scenarios of other schedulers."""
