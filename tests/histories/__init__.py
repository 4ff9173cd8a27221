"""Random histories of a cell, and the properties that the scheduler must have in each of them.

`inputs.py` draws a history from a seed; `player.py` plays it on the scheduler's state machine;
`properties.py` checks each cycle and the end; `shortest.py` cuts a history that breaks a property.
`make histories` plays many; `tests/property` plays a few.
"""
