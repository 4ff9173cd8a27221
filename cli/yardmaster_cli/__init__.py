"""The `yard` command, and `yard dev`, which runs every service in one process.

Start reading at `main`; `dev.embedded` wires the services. No other module but `commands.views`
imports a service, and no module contains a scheduling rule.
"""
