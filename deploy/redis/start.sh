#!/bin/sh
# Run Redis with a user for each service; their passwords come from files, so that no argument, environment or
# image contains them. Only the scripting commands that the views need are allowed. Compose, Kubernetes and
# the tests use this file.
set -eu

users=${REDIS_USERS:-/run/secrets/redis}
common='-@admin -@dangerous -@scripting +evalsha +script|load +client|setname'

# user NAME RULES...: a line of the configuration, with the digest of the password.
user() {
  name=$1
  shift
  digest=$(printf %s "$(cat "${users}/${name}")" | sha256sum | cut -d ' ' -f 1)
  echo "user ${name} on #${digest} ~* &* $*"
}

# The views service writes, and gateways only read.
views=$(user views "+@all ${common}")
gateway=$(user gateway "+@all -@write ${common}")
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
user default off
${views}
${gateway}
END
