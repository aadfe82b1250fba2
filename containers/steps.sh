#!/usr/bin/env bash
# The steps that make an image. Dockerfile and linumpy.def run the same ones, within the image:
#
#   steps.sh system            what the scripts and Nextflow's tasks need of the system
#   steps.sh tools             what only building needs, into /opt/tools
#   steps.sh install [EXTRA]   linumpy and what it needs, into /opt/linumpy
#
# How packages are reached is the builder's affair. What lies in the folder SECRETS while a step
# runs is used, and stays out of the image: apt.list, apt.conf, pip.conf, pip.env (lines NAME=VALUE)
# and ca.crt.
set -euo pipefail

SECRETS=${SECRETS:-/run/secrets}
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOOLS=/opt/tools
PREFIX=/opt/linumpy

use_secrets() {
    local name line
    if [[ -r $SECRETS/apt.conf ]]; then
        export APT_CONFIG=$SECRETS/apt.conf
    fi
    if [[ -r $SECRETS/pip.conf ]]; then
        export PIP_CONFIG_FILE=$SECRETS/pip.conf
    fi
    if [[ -r $SECRETS/pip.env ]]; then
        while IFS= read -r line; do
            name=${line%%=*}
            if [[ $name =~ ^PIP_[A-Z_]+$ ]]; then
                export "$name=${line#*=}"
            fi
        done <"$SECRETS/pip.env"
    fi
    if [[ -r $SECRETS/ca.crt ]]; then
        export PIP_CERT=$SECRETS/ca.crt SSL_CERT_FILE=$SECRETS/ca.crt
    fi
}

# apt-get, with the builder's sources in the place of the image's own.
apt() {
    local options=(-q) VERSION_CODENAME
    # shellcheck source=/dev/null
    VERSION_CODENAME=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # The builder's system may be another release, or another distribution.
    if grep -qsw "${VERSION_CODENAME:-unknown}" "$SECRETS/apt.list"; then
        # Secrets are root's to read, and apt fetches as somebody else.
        options+=(-o "Dir::Etc::SourceList=$SECRETS/apt.list" -o "Dir::Etc::SourceParts=/dev/null"
            -o "APT::Sandbox::User=root")
    fi
    if [[ -r $SECRETS/ca.crt ]]; then
        options+=(-o "Acquire::https::CaInfo=$SECRETS/ca.crt")
    fi
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" "$@"
}

apt_install() {
    apt update
    apt install --yes --no-install-recommends "$@"
    apt clean
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old \
        /var/cache/ldconfig/aux-cache /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
}

# Nextflow runs tasks with bash, watches them with ps, and handles their files with coreutils.
system() {
    apt_install bash ca-certificates coreutils procps python3
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "steps.sh: linumpy needs Python 3.11 or newer; this base has $(python3 -V)" >&2
        exit 1
    fi
    # Tasks run under the launching user's number, whatever it is: this home is anybody's.
    useradd --uid 10001 --user-group --no-create-home --home-dir /home/linumpy linumpy
    install -d -m 1777 /home/linumpy
}

tools() {
    apt_install python3-venv
    python3 -m venv "$TOOLS"
    "$TOOLS/bin/pip" install --no-cache-dir --constraint "$SOURCE/constraints.txt" hatchling
}

# The image gets no pip of its own: the one of the tools installs into it.
install_linumpy() {
    local wheels extras=remote,tables${1:+,$1}
    wheels=$(mktemp -d)
    "$TOOLS/bin/pip" wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir "$wheels" \
        "$SOURCE"
    python3 -m venv --without-pip "$PREFIX"
    "$TOOLS/bin/pip" --python "$PREFIX/bin/python" install --no-cache-dir \
        --constraint "$SOURCE/constraints.txt" "$(echo "$wheels"/linumpy_soct-*.whl)[$extras]"
    rm -rf "$wheels"
    if [[ -n ${1:-} ]]; then
        "$PREFIX/bin/python" -m linumpy.core.compile_kernels
    fi
    # Fails the build where it does not work.
    "$PREFIX/bin/linum_gpu_info.py"
}

use_secrets
case ${1:-} in
    system | tools) "$1" ;;
    install) install_linumpy "${2:-}" ;;
    *)
        echo "steps.sh: expected system, tools or install [EXTRA], got '${1:-}'" >&2
        exit 2
        ;;
esac
