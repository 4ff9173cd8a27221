"""The routes: one file per resource, and the code that only routes use.

A route authorizes its caller, and then reads the views or records requests.
"""
