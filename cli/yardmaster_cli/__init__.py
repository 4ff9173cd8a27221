"""The `yard` command, and `yard dev`, which runs every service in one process.

Start reading at `main`. Only `dev.embedded`, which wires the services, and `commands.views` import
a service. No module contains a scheduling rule.
"""
