"""Benchmarks: `make bench` runs them all in one run and prints a table; figures go to
bench/results.

Ratios within one run mean something; absolute times depend on the machine and its neighbours.
"""
