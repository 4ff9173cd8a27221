"""The routes: a file per resource, and the code that only routes share.

A route authorizes its caller, and then reads the views or records requests.
"""
