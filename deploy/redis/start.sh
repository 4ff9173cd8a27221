#!/bin/sh
# Run Redis with a password from a file, so that no argument, environment or image contains it.
# Only the scripting commands that the views need are allowed. Compose, Kubernetes and the tests use this file.
set -eu

exec redis-server - <<END
bind * -::*
port 6379
dir ${REDIS_DATA:-/data}
save 60 1000
# Lost views are rebuilt from the log, so an append-only file is not needed.
appendonly no
# A full Redis refuses writes with a clear error and still serves reads; without this limit the system would
# kill it. Nothing may be evicted, because incomplete views are wrong.
maxmemory ${REDIS_MAXMEMORY:-1gb}
maxmemory-policy noeviction
user default on >$(cat "${REDIS_PASSWORD_FILE:-/run/secrets/redis_password}") ~* &* +@all -@scripting +evalsha +script|load
END
