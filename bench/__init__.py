"""Benchmarks: `make bench` runs all of them, prints a table and writes bench/results.

Compare ratios within one run; absolute times depend on the machine and on its other work.
"""
