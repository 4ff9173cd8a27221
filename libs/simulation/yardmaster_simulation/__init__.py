"""Run the real state machines on simulated clusters and workloads, with a virtual clock.

Start reading at `world`, then `driver`; for scenarios at `conformance.scenarios`. This package
must not contain a scheduling rule.
"""
