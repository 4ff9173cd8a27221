#!/bin/sh
# Be Redis, with the password of a file: it is in no argument, no environment and no image.
# Of scripting, only what the views need is allowed. Compose, Kubernetes and the tests use this file.
set -eu

exec redis-server - <<END
bind * -::*
port 6379
dir ${REDIS_DATA:-/data}
save 60 1000
# The views are made anew from the log when they are lost: no record of each write.
appendonly no
# A full Redis refuses writes by name and is read on. Without a ceiling it would be killed, and nothing
# in it may be evicted: what views have is all or it is wrong.
maxmemory ${REDIS_MAXMEMORY:-1gb}
maxmemory-policy noeviction
user default on >$(cat "${REDIS_PASSWORD_FILE:-/run/secrets/redis_password}") ~* &* +@all -@scripting +evalsha +script|load
END
