#!/usr/bin/env bash
# `kustomize.sh FOLDER` renders a kustomization with the machine's kustomize (5 or newer) or kubectl, else
# with kustomize built once from Go's module proxy into .cache. Exit code 3: none of these exists.
set -euo pipefail

readonly FOLDER=${1:?usage: kustomize.sh FOLDER}
readonly VERSION=v5.7.1
# Debian 12's own golang-go is older and cannot fetch a newer one.
readonly GO_WANTED="Go 1.21 or newer with a way to a module proxy (golang-go of bookworm-backports, go.dev/dl)"
root=$(cd "$(dirname "$0")/../.." && pwd)
readonly BUILT=${root}/.cache/bin/kustomize

if kustomize version 2>/dev/null | grep -Eq '\bv([5-9]|[1-9][0-9])\.'; then
  exec kustomize build "${FOLDER}"
elif kubectl version --client 2>/dev/null | grep -Eq '^Kustomize Version: v([5-9]|[1-9][0-9])\.'; then
  exec kubectl kustomize "${FOLDER}"
elif [[ ! -x ${BUILT} ]]; then
  if ! command -v go >/dev/null; then
    echo "kustomize.sh: install kustomize ${VERSION}, kubectl 1.27 or newer, or ${GO_WANTED}" >&2
    exit 3
  fi
  echo "building kustomize ${VERSION}" >&2
  if ! GOBIN=$(dirname "${BUILT}") go install "sigs.k8s.io/kustomize/kustomize/v5@${VERSION}" >&2; then
    echo "kustomize.sh: $(go version) did not build it; wanted is ${GO_WANTED}" >&2
    exit 3
  fi
fi
exec "${BUILT}" build "${FOLDER}"
