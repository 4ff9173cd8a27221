#!/usr/bin/env bash
# Creates FOLDER/venv: a Python with PyTorch and the packages of requirements-torch.lock. Does nothing if
# it exists and was made by this version of the script and of the lock.
#
# The wheels of PyTorch for Linux on x86-64 bring CUDA libraries: 3 GB to download. Debian builds it for
# the CPU, with a fifteenth of that. Its packages are unpacked into FOLDER, without root and without a
# change to the machine, and run with their own loader and C library, so the release of the machine
# does not matter. The archive is signed, and a release of Debian keeps its version of PyTorch.
set -euo pipefail
# The first import compiles PyTorch, and later ones take a tenth of that time.
unset PYTHONDONTWRITEBYTECODE

readonly FOLDER=${1:?usage: torch.sh FOLDER [PYTHON]} PYTHON=${2:-}
readonly RELEASE=trixie TORCH_VERSION=2.6.0
here=$(cd "$(dirname "$0")/../.." && pwd)

fail() {
  echo "torch.sh: $*" >&2
  echo "torch.sh: name a Python that has PyTorch: make test-torch TORCH_PYTHON=/path/to/python3" >&2
  exit 1
}

made_of=$(cat "$0" "${here}/requirements-torch.lock" <(echo "${PYTHON}") | sha256sum | cut -c 1-16)
if [[ $(cat "${FOLDER}/made-of" 2>/dev/null) == "${made_of}" ]]; then
  exit 0
fi
rm -rf "${FOLDER}"
mkdir -p "${FOLDER}"
folder=$(cd "${FOLDER}" && pwd)

mirror_of_debian() {
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' 'Component: main' |
    awk -v release="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" '$1 == release { print $2; exit }'
}

# Downloads the packages that PyTorch of Debian needs, as on a machine that has none.
download() {
  local mirror
  mirror=$(mirror_of_debian)
  if [[ -z ${mirror} && $(id -u) == 0 ]]; then
    # Without package lists apt does not know the name of the release.
    apt-get -qq update
    mirror=$(mirror_of_debian)
  fi
  [[ -n ${mirror} ]] || fail "apt names no mirror of Debian; run apt-get update"
  mkdir -p "${folder}"/apt/{lists/partial,cache/archives/partial}
  touch "${folder}/apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror} ${RELEASE} main" \
    >"${folder}/apt/sources.list"
  local options=(
    -qq -o "Dir::Etc::SourceList=${folder}/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=${folder}/apt/lists" -o "Dir::State::status=${folder}/apt/status"
    -o "Dir::Cache=${folder}/apt/cache" -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none
  )
  apt-get "${options[@]}" update
  apt-get "${options[@]}" install -y --download-only --no-install-recommends python3-torch >/dev/null
}

unpack() {
  local package
  mkdir "${folder}/root"
  for package in "${folder}"/apt/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "${package}" | tar -x -C "${folder}/root" --no-same-owner \
      --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale
  done
  rm -rf "${folder}/apt"
  # Runs Python with the libraries in the folder; the name is that of the caller, so that a venv works.
  cat >"${folder}/root/usr/bin/python3-with-torch" <<'WRAPPER'
#!/bin/sh
usr=$(dirname "$(dirname "$(readlink -f "$0")")")
lib=${usr}/lib/x86_64-linux-gnu
exec "${usr}/lib64/ld-linux-x86-64.so.2" --argv0 "$0" \
  --library-path "${lib}:${usr}/lib:${lib}/blas:${lib}/lapack" "${usr}/bin/python3" "$@"
WRAPPER
  chmod +x "${folder}/root/usr/bin/python3-with-torch"
}

base=${PYTHON}
if [[ -z ${base} ]]; then
  command -v apt-get >/dev/null && [[ $(uname -sm) == "Linux x86_64" ]] ||
    fail "the packages of Debian need apt and Linux on x86-64"
  download
  unpack
  base=${folder}/root/usr/bin/python3-with-torch
fi
version=$("${base}" -c 'import torch; print(torch.__version__)') || fail "${base} cannot import torch"
[[ -n ${PYTHON} || ${version} == "${TORCH_VERSION}"* ]] || fail "expected PyTorch ${TORCH_VERSION}, not ${version}"

uv=$(command -v uv || echo "${here}/.venv/bin/uv")
"${uv}" venv --quiet --system-site-packages --python "${base}" "${folder}/venv"
"${uv}" pip install --quiet --python "${folder}/venv/bin/python" --require-hashes --no-deps \
  -r "${here}/requirements-torch.lock"
echo "PyTorch ${version} in ${FOLDER}/venv"
echo "${made_of}" >"${FOLDER}/made-of"
