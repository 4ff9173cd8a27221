"""A cluster of real processes under load and seeded faults: `make chaos`.

`plan` draws the faults from a seed, `faults` executes them, `load` submits jobs, and `verdict`
checks the log, the notes of the tasks and the answers to users afterwards. `__main__` runs it.
"""
