"""How results are printed: cells, columns, descriptions of one object, and output formats."""
