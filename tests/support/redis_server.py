"""A real Redis server for tests; `yard up --local` runs the same."""

from yardmaster_localcluster.errors import RedisFailed
from yardmaster_localcluster.redis_server import RedisServer, redis_program

__all__ = ["RedisFailed", "RedisServer", "redis_program"]
