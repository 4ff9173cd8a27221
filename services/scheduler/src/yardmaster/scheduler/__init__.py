"""The scheduling service of Yardmaster, and the relay of its decisions to the nodes."""
