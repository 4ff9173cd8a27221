#!/usr/bin/env bash
# `go_tool.sh TOOL ARGUMENT...` runs kustomize, helm or promtool: the machine's own where it is new enough,
# else the one in .cache/bin. `go_tool.sh build` builds those that are missing there, from Go's module
# proxy; it takes minutes. Exit code 3: the tool is missing, or cannot be built here.
set -euo pipefail

# Debian 12's own golang-go is older and cannot fetch a newer one.
readonly GO_WANTED="Go 1.26.7 or newer, or Go 1.21 with a way to a module proxy (golang-go of bookworm-backports, go.dev/dl)"
readonly TOOLS="kustomize promtool helm"
readonly USAGE="usage: go_tool.sh kustomize|helm|promtool ARGUMENT..., or go_tool.sh build"
root=$(cd "$(dirname "$0")/../.." && pwd)
readonly BIN=${root}/.cache/bin

# Sets what the tool is built from and where, and how the machine's own tool shows that it is new enough.
describe() { # TOOL
  tags=''
  case $1 in
    kustomize)
      package=sigs.k8s.io/kustomize/kustomize/v5 release=v5.7.1
      version=(kustomize version) enough='v([5-9]|[1-9][0-9])\.'
      ;;
    helm)
      package=helm.sh/helm/v4/cmd/helm release=v4.3.1
      version=(helm version --short) enough='^v([3-9]|[1-9][0-9])\.'
      ;;
    promtool)
      # Checking rules needs no service discovery, and its client libraries are most of the build.
      package=github.com/prometheus/prometheus/cmd/promtool release=v0.316.0 tags=remove_all_sd
      version=(promtool --version) enough='^promtool, version ([3-9]|[1-9][0-9])\.'
      ;;
    *)
      echo "${USAGE}" >&2
      exit 2
      ;;
  esac
  built=${BIN}/$1-${release}
}

own() { "${version[@]}" 2>/dev/null | grep -Eq "${enough}"; }

# Builds the described tool as ${built} if it is missing.
build() {
  [[ ! -x ${built} ]] || return 0
  if ! command -v go >/dev/null; then
    echo "go_tool.sh: install ${tool} ${release} or ${GO_WANTED}" >&2
    exit 3
  fi
  mkdir -p "${BIN}"
  local begun=${SECONDS}
  echo "building ${tool} ${release}" >&2
  if ! GOBIN=${BIN} CGO_ENABLED=0 go install -trimpath -tags "${tags}" "${package}@${release}" >&2; then
    echo "go_tool.sh: $(go version) did not build ${tool}; wanted is ${GO_WANTED}" >&2
    exit 3
  fi
  mv "${BIN}/${tool}" "${built}"
  echo "built ${tool} ${release} in $((SECONDS - begun)) s" >&2
}

tool=${1:?${USAGE}}
shift
if [[ ${tool} == build ]]; then
  for tool in ${TOOLS}; do
    describe "${tool}"
    own || build
  done
  exit
fi
describe "${tool}"
if own; then
  exec "${tool}" "$@"
elif [[ ${tool} == kustomize && ${1:-} == build ]] &&
  kubectl version --client 2>/dev/null | grep -Eq '^Kustomize Version: v([5-9]|[1-9][0-9])\.'; then
  exec kubectl kustomize "${@:2}"
fi
if [[ ! -x ${built} ]]; then
  echo "go_tool.sh: ${tool} ${release} is missing; 'make tools' builds it" >&2
  exit 3
fi
exec "${built}" "$@"
