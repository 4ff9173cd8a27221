"""The quota service: runs the admission machine.

Start reading at `main`. Must not import another service or place tasks on nodes.
"""
