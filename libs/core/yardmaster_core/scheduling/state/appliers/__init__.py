"""One applier per event version, grouped by subject; `apply.APPLIERS` is their table.

An applier has the name of its event, and the event's docstring describes it.
"""
