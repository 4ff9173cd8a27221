#!/usr/bin/env bash
# A Docker engine for CI. `docker.sh start`: if no engine answers, install it from the distribution (on
# Debian, as root) and start it; `docker.sh stop`: stop the engine that `start` started. Both are idempotent.
set -euo pipefail

readonly STATE=/run/yardmaster-ci
readonly LOG=${STATE}/dockerd.log
readonly PIDFILE=${STATE}/dockerd.pid
readonly START_LIMIT_S=60

fail() {
  echo "docker.sh: $*" >&2
  exit 1
}

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

composes() { docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null; }

install_packages() {
  [[ $(id -u) == 0 ]] || fail "no Docker engine answers, and only root can install one: start one first"
  command -v apt-get >/dev/null || fail "no Docker engine answers, and this is not Debian: start one first"
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v iptables >/dev/null || missing+=(iptables)
  composes || missing+=(docker-compose)
  ((${#missing[@]} == 0)) && return
  echo "installing ${missing[*]}"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
  # Newer releases have the command in its own package, which the engine's package only recommends.
  command -v docker >/dev/null ||
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends docker-cli >/dev/null
}

# Wait for an engine that another process started, such as the package's installer. A zombie process looks
# the same, so the wait is short.
others_come_up() {
  for ((i = 0; i < 50; i++)); do
    answers && return 0
    grep -qsx dockerd /proc/[0-9]*/comm || return 1
    sleep 0.2
  done
  return 1
}

# A killed engine leaves pid files behind. A pid file of a dead or zombie process must not prevent the next
# start.
remove_stale() { # PIDFILE
  local state
  [[ -f $1 ]] || return 0
  state=$(awk '/^State:/ { print $2 }' "/proc/$(<"$1")/status" 2>/dev/null || true)
  [[ -n ${state} && ${state} != Z ]] || rm -f "$1"
}

# Try one way to run the engine: $@ are its options. Returns 1 when it ends before it answers.
try() {
  setsid dockerd --host unix:///var/run/docker.sock --pidfile "${STATE}/engine.pid" "$@" \
    </dev/null >"${LOG}" 2>&1 &
  local pid=$!
  echo "${pid}" >"${PIDFILE}"
  for ((i = 0; i < START_LIMIT_S * 5; i++)); do
    answers && return 0
    kill -0 "${pid}" 2>/dev/null || return 1
    sleep 0.2
  done
  kill "${pid}"
  return 1
}

start() {
  if answers && composes; then
    echo "a Docker engine answers"
    return
  fi
  install_packages
  others_come_up && return
  mkdir -p "${STATE}"
  remove_stale "${STATE}/engine.pid"
  remove_stale /run/docker/containerd/containerd.pid
  # Without overlay support the engine copies layers (vfs): slow and large, but it works everywhere.
  try || { grep -q 'graphdriver' "${LOG}" && try --storage-driver vfs; } ||
    fail "dockerd does not start; the end of its log: $(echo && tail -n 20 "${LOG}")"
  docker info --format 'Docker {{.ServerVersion}}, {{.Driver}}, cgroup v{{.CgroupVersion}}'
}

stop() {
  [[ -f ${PIDFILE} ]] || return 0
  local pid
  pid=$(<"${PIDFILE}")
  rm -f "${PIDFILE}"
  if [[ $(cat "/proc/${pid}/comm" 2>/dev/null) == dockerd ]]; then
    kill "${pid}"
    for ((i = 0; i < 100; i++)); do
      kill -0 "${pid}" 2>/dev/null || return 0
      sleep 0.2
    done
    fail "dockerd did not stop"
  fi
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  *) fail "usage: docker.sh start|stop" ;;
esac
