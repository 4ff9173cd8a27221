"""The HTTP code of all routes: bodies, headers, filters, pages, problems, streams, and the server.

No file here may depend on a particular resource such as jobs.
"""
