"""Every event, reason code, topic and REST body, as frozen and versioned types.

Start reading at `envelope`, then `events`. Must not import another part of Yardmaster, read a file
or a clock, or change the meaning of a published version.
"""
