"""The tasks of a gateway that no request starts: own records, the token file, idle partitions."""
