"""Which other users may write a file or folder, by its mode."""

import stat


def other_writers(mode: int) -> str | None:
    """Return the users that may write a file, apart from its owner: `all users` or `its group`.

    None if only the owner may write it.

    A sticky folder, such as `/tmp`, counts as private: others cannot replace its files there.
    """
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return None
    if mode & stat.S_IWOTH:
        return "all users"
    return "its group" if mode & stat.S_IWGRP else None
