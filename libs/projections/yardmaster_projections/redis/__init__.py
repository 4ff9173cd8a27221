"""The views' store on Redis.

Start reading at `store`; `keys` shows the layout. Only `wire` imports the Redis client.
"""
