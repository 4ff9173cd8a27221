"""Runs the real state machines on simulated clusters and workloads, on a virtual clock.

Start reading at `world`, then `driver`; for scenarios at `conformance.scenarios`. Must not hold a
scheduling rule.
"""
