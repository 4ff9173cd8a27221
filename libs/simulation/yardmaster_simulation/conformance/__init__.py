"""Scenarios of other schedulers, with their outcomes, held against what the core decides."""
