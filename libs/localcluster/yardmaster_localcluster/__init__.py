"""A whole cluster on one machine: broker, Redis and services, as processes or in containers.

Start reading at `background` (or `compose`), then `supervisor`, `fleet` and `plan`. The package
must not import a service or the CLI: it starts services as programs.
"""
