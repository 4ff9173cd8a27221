"""Views and metered usage of Yardmaster as pure functions over events, and their store."""
