"""The `yard` command, and `yard dev`, which runs every service in one process.

Start reading at `main`; `embedded` connects the services. No other module imports a service, and no
module holds a scheduling rule.
"""
