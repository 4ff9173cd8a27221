"""The arithmetic of Kubernetes: what a pod requests, what a node has free, whether the pod fits.

No process uses it yet: Yardmaster neither joins nodes of Kubernetes nor runs tasks as pods. Start
reading at `fit`. Must not import a service.
"""
