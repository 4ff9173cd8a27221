#!/usr/bin/env bash
# Build every image that compose and the tests use, without an image registry, tagged TAG: the services
# from deploy/docker/Dockerfile, Kafka and Redis from the Dockerfiles of their folders. Unchanged layers come
# from the cache.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly BASE=${1:?usage: images.sh BASE TAG}
readonly TAG=${2:?usage: images.sh BASE TAG}
# The classic builder of Debian's engine: BuildKit needs a plugin, and a registry for its front ends.
export DOCKER_BUILDKIT=0

# Builds use the machine's settings for package indexes and proxies.
arguments=(--force-rm --network host --build-arg "BASE=${BASE}")
for name in PIP_INDEX_URL UV_DEFAULT_INDEX HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
  [[ -z ${!name:-} ]] || arguments+=(--build-arg "${name}")
done

logs=$(mktemp -d)
context=$(mktemp -d)
trap 'rm -rf "${logs}" "${context}"' EXIT

build() { # IMAGE DOCKERFILE CONTEXT [ARGUMENT...]
  local begun=${SECONDS} log=${logs}/$1
  if ! docker build "${arguments[@]}" "${@:4}" --file "$2" --tag "$1:${TAG}" "$3" >"${log}" 2>&1; then
    tail -n 40 "${log}" >&2
    echo "images.sh: $1 was not built" >&2
    exit 1
  fi
  echo "$1:${TAG} $((SECONDS - begun)) s"
}

cp -r deploy/kafka/. "${context}"
mkdir "${context}/libs"
.venv/bin/python - "${context}/libs" <<'END'
import glob, os, shutil, sys
from yardmaster_localcluster.broker import classpath

for entry in classpath().split(os.pathsep):
    for jar in glob.glob(f"{entry}.jar" if entry.endswith("*") else entry):
        shutil.copy2(jar, sys.argv[1])
END
packaged() {
  build yardmaster-kafka "${context}/Dockerfile" "${context}"
  build yardmaster-redis deploy/redis/Dockerfile deploy/redis
}
packaged &
for service in gateway quota scheduler views agent cli; do
  image=yardmaster-${service/#agent/node-agent}
  build "${image}" deploy/docker/Dockerfile . --build-arg "SERVICE=${service}"
done
wait $!
