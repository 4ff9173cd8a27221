"""One applier per event version, by what it is about; `apply.APPLIERS` is their table.

An applier is named for its event, whose docstring says what happened.
"""
