#!/usr/bin/env bash
# Runs the contract of the executors, also with an invented GPU, on a Docker engine that is newer than the distribution's: builds it from
# Go's module proxy (minutes, once), starts it with data and a network of its own, and copies IMAGE to it.
# Needs root, Go, a C compiler, docker-init, and an engine with IMAGE. $@ are further options of pytest.
set -euo pipefail

# An older runc refuses the time namespaces that this engine requests, and containerd and its shim must match.
readonly PACKAGES=(
  github.com/moby/moby/v2/cmd/dockerd@v2.0.0-beta.24
  github.com/containerd/containerd/v2/cmd/containerd@v2.4.2
  github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@v2.4.2
  github.com/opencontainers/runc@v1.3.0
)
readonly IMAGE=${YARD_UP_BASE:-yardmaster-base:ci}
readonly START_LIMIT_S=60
root=$(cd "$(dirname "$0")/../.." && pwd)
made_of=$(sha256sum <<<"${PACKAGES[*]}" | cut -c 1-16)
readonly BIN=${root}/.cache/bin/engine-${made_of}

if [[ ! -d ${BIN} ]]; then
  rm -rf "${BIN}.new"
  for package in "${PACKAGES[@]}"; do
    echo "building ${package}"
    # runc enters namespaces in C; without the headers of libseccomp it has no filters of system calls.
    GOBIN=${BIN}.new CGO_ENABLED=1 go install -trimpath "${package}"
  done
  mv "${BIN}.new" "${BIN}"
fi

state=$(mktemp -d)
stop() {
  [[ ! -f ${state}/pid ]] || kill "$(<"${state}/pid")"
  wait
  rm -rf "${state}"
}
trap stop EXIT
mkdir "${state}/cdi"
echo mounted >"${state}/gpu"
cat >"${state}/cdi/gpu.json" <<END
{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-invented", "containerEdits": {
  "env": ["YARD_CDI_GPU=yes"],
  "mounts": [{"hostPath": "${state}/gpu", "containerPath": "/run/cdi-gpu", "options": ["ro", "bind"]}]
}}]}
END
readonly HOST=unix://${state}/e.sock
PATH=${BIN}:${PATH} unshare --net dockerd --host "${HOST}" --pidfile "${state}/pid" \
  --data-root "${state}/data" --exec-root "${state}/exec" --seccomp-profile unconfined \
  --cdi-spec-dir "${state}/cdi" \
  --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false 2>"${state}/log" &
for ((i = 0; i < START_LIMIT_S * 5; i++)); do
  docker --host "${HOST}" version >/dev/null 2>&1 && break
  kill -0 $! 2>/dev/null || break
  sleep 0.2
done
docker --host "${HOST}" version --format '{{json .Server.Components}}' || { tail -n 20 "${state}/log" && exit 1; }
docker --host "${HOST}" info --format '{{json .DiscoveredDevices}}' | grep GPU-invented
docker save "${IMAGE}" | docker --host "${HOST}" load
cd "${root}"
DOCKER_HOST=${HOST} .venv/bin/python -m pytest \
  tests/contract/test_executor.py tests/contract/test_container_gpus.py -k container "$@"
