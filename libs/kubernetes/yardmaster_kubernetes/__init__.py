"""Reads a cluster of Kubernetes: a client, watches that see every deletion, the fit of pods.

No process uses it yet: Yardmaster neither joins nodes of Kubernetes nor runs tasks as pods. Start
reading at `reflector`, then `fit`. Must not import a service or the log.
"""
