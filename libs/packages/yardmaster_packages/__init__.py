"""Files of users that are not in the log: code packages before a run, and artifacts after it.

A code package is a folder as an archive that is named by its content. Start reading at `archive` (a
folder becomes a package), then `store` (where packages are kept) and `unpacking` (a package becomes
a folder again). Artifacts are files that a replica leaves in its working folder: `artifact_files`
finds them, `artifact_store` keeps them. The package must not import the log or a service.
"""
