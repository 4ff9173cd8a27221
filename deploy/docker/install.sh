#!/bin/sh
# Within an image build: `install.sh tools` fetches uv, held to its hash in requirements.lock;
# `install.sh MEMBER` installs that member of the workspace into /opt/yardmaster with what it needs and
# nothing else: its siblings from the build context, all else at the versions and hashes of the lock. What
# is there already stays, so that images share what an earlier layer installed.
set -eu

venv=/opt/yardmaster
tools=/opt/tools

if [ "$1" = tools ]; then
  python3 -m venv "${tools}"
  awk '/^uv==/ { p = 1 } p { print } p && !/\\$/ { exit }' requirements.lock >uv.txt
  "${tools}/bin/pip" install --quiet --no-cache-dir --require-hashes --no-deps -r uv.txt
  rm uv.txt
  exit
fi

[ -d "${venv}" ] || "${tools}/bin/uv" venv --quiet --python "$(command -v python3)" "${venv}"
"${tools}/bin/uv" pip install --quiet --no-cache --python "${venv}/bin/python" \
  --constraints requirements.lock --no-editable --compile-bytecode "./$1"

# Constraints hold only what they name, so nothing may be there that the lock does not name.
"${tools}/bin/uv" pip freeze --quiet --python "${venv}/bin/python" | grep -v ' @ file://' |
  while read -r pinned; do
    if ! grep -q "^${pinned}\( \|$\)" requirements.lock; then
      echo "install.sh: ${pinned} is not in requirements.lock" >&2
      exit 1
    fi
  done
