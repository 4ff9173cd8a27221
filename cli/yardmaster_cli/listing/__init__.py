"""What `yard ls` lists: filters, rows, and the order of a queue."""
