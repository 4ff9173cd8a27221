#!/usr/bin/env bash
# Installs the release before, from its commit and its lock, into an environment of its own, for the
# test of mixed versions. The folder is named by the commit, so a second run returns at once.
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=$(<tests/data/former_version)
folder=.cache/former/${commit}
uv=$(command -v uv || echo "${PWD}/.venv/bin/uv")
[[ ! -e ${folder}/ready ]] || exit 0
git cat-file -e "${commit}^{commit}" 2>/dev/null || {
  echo "the commit ${commit} is not here; fetch the whole history: git fetch --unshallow" >&2
  exit 1
}
rm -rf "${folder}"
mkdir -p "${folder}/source"
git archive "${commit}" pyproject.toml README.md LICENSE requirements.lock libs services cli |
  tar -x -C "${folder}/source"
"${uv}" venv --quiet --python .venv/bin/python "${folder}/venv"
"${uv}" pip install --quiet --python "${folder}/venv" --require-hashes -r "${folder}/source/requirements.lock"
"${uv}" pip install --quiet --python "${folder}/venv" --no-deps --no-build-isolation "./${folder}/source"
rm -rf "${folder}/source"
touch "${folder}/ready"
