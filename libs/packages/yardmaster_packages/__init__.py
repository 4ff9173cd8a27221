"""Code packages: folders of users as archives that are named by their content.

Start reading at `archive` (a folder becomes a package), then `store` (where packages are kept) and
`unpacking` (a package becomes a folder again). The package must not import the log or a service.
"""
