#!/usr/bin/env bash
# Build an image: containers/build.sh cpu|cuda [OPTION …]
#
# The image is called linumpy:cpu or linumpy:cuda and carries version and git revision as labels.
# OPTIONs go to `docker build` (--tag, --build-arg BASE_IMAGE=…, --build-arg GPU_EXTRA=gpu13, …).
# ENGINE says what builds, docker unless given; podman does too.
#
# How this machine reaches its packages serves the build as well and stays out of the image:
# pip's configuration and PIP_… variables, certificates, a proxy; on Debian, its sources of
# packages where the base image is of the same release.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ENGINE=${ENGINE:-docker}

target=${1:-}
if [[ $target != cpu && $target != cuda ]]; then
    echo "usage: containers/build.sh cpu|cuda [OPTION ...]" >&2
    exit 2
fi
shift

secrets=$(mktemp -d)
trap 'rm -rf "$secrets"' EXIT
"$ROOT/containers/secrets.sh" "$secrets"

options=(--file "$ROOT/containers/Dockerfile" --target "$target" --tag "linumpy:$target")
if [[ $ENGINE == *podman ]]; then
    # Podman's own format of images has no health checks.
    options+=(--format docker)
fi
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$ROOT/linumpy/__init__.py")
revision=$(git -C "$ROOT" rev-parse HEAD 2>/dev/null || echo unknown)
if [[ $revision != unknown && -n $(git -C "$ROOT" status --porcelain) ]]; then
    revision+=-modified
fi
options+=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for file in "$secrets"/*; do
    [[ ! -e $file ]] || options+=(--secret "id=${file##*/},src=$file")
done
# The engines know these arguments and keep them out of the image.
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -z ${!name:-} ]] || options+=(--build-arg "$name=${!name}")
done

DOCKER_BUILDKIT=1 "$ENGINE" build "${options[@]}" "$@" "$ROOT"
