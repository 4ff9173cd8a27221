#!/usr/bin/env bash
# A base image for the Dockerfiles without an image registry: this Debian's own release, with Python,
# from the mirror that the machine's package manager uses. Does nothing if the image exists and was built
# by this version of the script.
set -euo pipefail

readonly IMAGE=${1:?usage: base_image.sh IMAGE}
readonly PACKAGES=python3,python3-venv,ca-certificates

readonly TRUST=/etc/ssl/certs/ca-certificates.crt
if [[ ! -f ${TRUST} && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends ca-certificates >/dev/null
fi
made_of=$(cat "$0" "${TRUST}" | sha256sum | cut -c 1-16)

if [[ $(docker image inspect --format '{{index .Config.Labels "made-of"}}' "${IMAGE}" 2>/dev/null) == "${made_of}" ]]; then
  echo "${IMAGE} is there"
  exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "base_image.sh: needs Debian and root; or set BASE to an image with Python 3.11" >&2
  exit 1
fi

# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "${VERSION_CODENAME}")
mirrors() {
  # shellcheck disable=SC2016
  apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) main' 'Created-By: Packages' 'Component: main' |
    awk -v release="${release}" '$3 == release || index($3, release "-") == 1' | sort -u
}
sources=$(mirrors)
if [[ -z ${sources} ]]; then
  # Without package lists apt does not know the name of the release.
  apt-get -qq update
  sources=$(mirrors)
fi
if [[ -z ${sources} ]]; then
  echo "base_image.sh: the machine's package manager names no mirror of ${release} main" >&2
  exit 1
fi
proxy=$(apt-config shell proxy Acquire::http::Proxy | sed -n "s/^proxy='\(.*\)'$/\1/p")

# mmdebstrap needs half the time of debootstrap, because it uses apt.
if ! command -v mmdebstrap >/dev/null; then
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends mmdebstrap >/dev/null
fi
# The image contains the machine's trust store, so builds trust the same certificate authorities.
mmdebstrap --quiet --mode=root --variant=minbase --include="${PACKAGES}" \
  ${proxy:+--aptopt="Acquire::http::Proxy \"${proxy}\""} \
  --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook="copy-in ${TRUST} /etc/ssl/certs" \
  "${release}" - - <<<"${sources}" |
  docker import --change "ENV SSL_CERT_FILE=${TRUST}" --change "LABEL made-of=${made_of}" \
    --change 'CMD ["bash"]' - "${IMAGE}"
