"""The parts of a submission: its records, the newest submissions, and warnings of node sizes."""
