"""The views' store on Redis.

Start reading at `store`; `keys` shows the layout. Only `client` imports redis-py.
"""
