#!/usr/bin/env bash
# `go_tool.sh TOOL ARGUMENT...` runs kustomize, helm or promtool: the machine's own where it is new enough,
# else the one in .cache/bin. `go_tool.sh path kubernetes` prints the path of a control plane of Kubernetes
# for tests, which all checkouts of this user share, because it takes up to 20 minutes to build.
# `go_tool.sh build` builds those that are missing, from Go's module proxy; it takes minutes.
# Exit code 3: the tool is missing, or cannot be built here.
set -euo pipefail

# Debian 12's own golang-go is older and cannot fetch a newer one.
readonly GO_WANTED="Go 1.26.7 or newer, or Go 1.21 with a way to a module proxy (golang-go of bookworm-backports, go.dev/dl)"
readonly TOOLS="kustomize promtool helm kubernetes"
readonly USAGE="usage: go_tool.sh kustomize|helm|promtool ARGUMENT..., go_tool.sh path TOOL, or go_tool.sh build"
root=$(cd "$(dirname "$0")/../.." && pwd)
readonly BIN=${root}/.cache/bin
readonly SHARED=${XDG_CACHE_HOME:-${HOME}/.cache}/yardmaster/bin
readonly CONTROL_PLANE=${root}/deploy/ci/kubernetes

# Sets what the tool is built from and where, and how the machine's own tool shows that it is new enough.
describe() { # TOOL
  tags='' folder=${BIN}
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
    kubernetes)
      folder=${SHARED} package=${CONTROL_PLANE}
      release=$(control_plane_release)
      version=(false) enough=''
      ;;
    *)
      echo "${USAGE}" >&2
      exit 2
      ;;
  esac
  built=${folder}/$1-${release}
}

# The version of Kubernetes, and a digest of all that its program is built from.
control_plane_release() {
  local made_of
  made_of=$(cat "${CONTROL_PLANE}"/{main.go,go.mod,go.sum} <(go env GOVERSION 2>/dev/null) | sha256sum)
  echo "$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\)$|\1|p' "${CONTROL_PLANE}/go.mod")-${made_of:0:16}"
}

own() { "${version[@]}" 2>/dev/null | grep -Eq "${enough}"; }

# Builds the described tool as ${built} if it is missing.
build() {
  [[ ! -x ${built} ]] || return 0
  if ! command -v go >/dev/null; then
    echo "go_tool.sh: install ${tool} ${release} or ${GO_WANTED}" >&2
    exit 3
  fi
  mkdir -p "${folder}"
  local begun=${SECONDS}
  echo "building ${tool} ${release}" >&2
  if ! compile >&2; then
    echo "go_tool.sh: $(go version) did not build ${tool}; wanted is ${GO_WANTED}" >&2
    exit 3
  fi
  echo "built ${tool} ${release} in $((SECONDS - begun)) s" >&2
}

# Two checkouts may build at the same time; only a finished program gets its name.
compile() {
  local new=${built}.$$
  if [[ ${tool} == kubernetes ]]; then
    local about=k8s.io/component-base/version number=${release#v}
    number=${number%%-*}
    # kubectl and clients read the version that the server says it has.
    (cd "${package}" && GOTOOLCHAIN=local CGO_ENABLED=0 go build -trimpath -o "${new}" -ldflags="-s -w \
      -X ${about}.gitVersion=v${number} -X ${about}.gitMajor=1 -X ${about}.gitMinor=$(cut -d. -f2 <<<"${number}")" .) || return 1
    mv "${new}" "${built}"
    return
  fi
  GOBIN=${folder} CGO_ENABLED=0 go install -trimpath -tags "${tags}" "${package}@${release}" || return 1
  mv "${folder}/${tool}" "${built}"
}

tool=${1:?${USAGE}}
shift
if [[ ${tool} == path ]]; then
  tool=${1:?${USAGE}}
  describe "${tool}"
  if [[ ! -x ${built} ]]; then
    echo "go_tool.sh: ${tool} ${release} is missing; 'make tools' builds it" >&2
    exit 3
  fi
  echo "${built}"
  exit
fi
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
