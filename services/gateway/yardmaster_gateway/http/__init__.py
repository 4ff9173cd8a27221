"""The HTTP of all routes: bodies, headers, filters, pages, problems, streams, and the server.

No file here knows a resource.
"""
