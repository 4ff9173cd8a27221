"""The projection: the changes of views by each event, as a pure function.

Start reading at `step`, then `draft`; a module for each topic. Must not read the log or a store.
"""
