"""The format of a log: one number for records, topics, files and digests.

A log names its format where it begins: in the header of a SQLite file, in LogCreated on Kafka, and
in the file `format` of the data directory of `yard up`. A log of another format is refused before
anything is read from it or written to it. Until release 0.1 is tagged, each change after which
older logs cannot be read increases the number; no log is converted.

Development versions used the formats 1 to 15.
"""

from typing import Final

LOG_FORMAT: Final = 16
