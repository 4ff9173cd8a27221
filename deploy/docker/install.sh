#!/bin/sh
# Steps of the image build. `install.sh tools` fetches uv, checked against its hash in requirements.lock;
# `install.sh packages EXTRA` installs the third-party packages of one extra (`cli`: of all extras) at the
# versions of the lock; `install.sh yardmaster` installs Yardmaster itself and checks that nothing was
# installed that the lock does not name.
set -eu

venv=/opt/yardmaster
tools=/opt/tools

case $1 in
tools)
  python3 -m venv "${tools}"
  awk '/^uv==/ { p = 1 } p { print } p && !/\\$/ { exit }' requirements.lock >uv.txt
  "${tools}/bin/pip" install --quiet --no-cache-dir --require-hashes --no-deps -r uv.txt
  rm uv.txt
  "${tools}/bin/uv" venv --quiet --python "$(command -v python3)" "${venv}"
  ;;
packages)
  extra=$2
  [ "${extra}" != cli ] || extra=all
  "${tools}/bin/uv" pip install --quiet --no-cache --python "${venv}/bin/python" \
    --constraints requirements.lock --compile-bytecode -r pyproject.toml --extra "${extra}"
  ;;
yardmaster)
  "${tools}/bin/uv" pip install --quiet --no-cache --python "${venv}/bin/python" \
    --build-constraints requirements.lock --no-deps --compile-bytecode .
  "${tools}/bin/uv" pip freeze --quiet --python "${venv}/bin/python" | grep -v ' @ file://' |
    while read -r pinned; do
      if ! grep -q "^${pinned}\( \|$\)" requirements.lock; then
        echo "install.sh: ${pinned} is not in requirements.lock" >&2
        exit 1
      fi
    done
  ;;
esac
