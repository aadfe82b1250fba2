#!/usr/bin/env bash
# make test-containers: the CPU image made from nothing, and the pipeline run in it.
#
# As root on Debian: a base image of this Debian, a Docker daemon of its own with all it keeps in a
# temporary folder, the image and what it promises, the tiny phantom without one of its slices with
# -profile test,docker and without a container, and Podman. Nothing is left but Debian's packages; a daemon that runs already
# is not touched. BIN is the folder of the environment's programs.
#
# shellcheck disable=SC2016  # what stands in single quotes is for the image's bash
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BIN=$(cd "${BIN:-$ROOT/.venv/bin}" && pwd)
GB_NEEDED=12
declare -a children=()

say() { echo "test-containers: $*"; }

fail() {
    echo "test-containers: FAILED: $*" >&2
    exit 1
}

# expect WHAT COMMAND...: the command succeeds.
expect() {
    local what=$1
    shift
    "$@" >"$tmp/expect.log" 2>&1 || { cat "$tmp/expect.log" >&2; fail "$what"; }
    say "ok: $what"
}

cleanup() {
    local status=$? child mount
    trap - INT TERM
    set +e
    for child in "${children[@]}"; do
        kill "$child"
        # A daemon that stops takes its containers with it, which takes seconds.
        for _ in {1..60}; do
            jobs -rp | grep -qx "$child" || break
            sleep 1
        done
        kill -KILL "$child"
    done 2>/dev/null
    awk -v folder="$tmp/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r |
        while IFS= read -r mount; do umount -l "$mount"; done
    rm -rf "$tmp"
    [[ $status == 0 ]] || say "ended with status $status"
    exit "$status"
}

install_packages() {
    local package missing=()
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    [[ ${#missing[@]} != 0 ]] || return 0
    say "installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        "${missing[@]}" >"$tmp/apt.log" 2>&1 || { cat "$tmp/apt.log" >&2; fail "apt-get install"; }
}

# This release of Debian, from where this machine gets it; the image shall not know from where.
make_base() {
    local mirror proxy
    mirror=$(awk -v release="$VERSION_CODENAME" '$3 == release { print $2; exit }' "$1/apt.list")
    [[ -n $mirror ]] || fail "apt knows no source of $VERSION_CODENAME"
    proxy=$(apt-config dump Acquire::http::Proxy | sed -n 's/.* "\(.*\)";$/\1/p')
    http_proxy=${http_proxy:-$proxy} debootstrap --variant=minbase "$VERSION_CODENAME" \
        "$tmp/base" "$mirror" >"$tmp/debootstrap.log" 2>&1 ||
        { tail -20 "$tmp/debootstrap.log" >&2; fail "debootstrap"; }
    rm -rf "$tmp"/base/var/cache/apt/archives/*.deb "$tmp"/base/var/lib/apt/lists/*
    : >"$tmp/base/etc/apt/sources.list"
}

# Copies of whole file systems are slow; where a file system can lie on another they are not needed.
storage_driver() {
    mkdir "$tmp/probe" "$tmp/probe"/{lower,upper,work,merged}
    if mount -t overlay overlay "$tmp/probe/merged" -o \
        "lowerdir=$tmp/probe/lower,upperdir=$tmp/probe/upper,workdir=$tmp/probe/work" 2>/dev/null
    then
        umount "$tmp/probe/merged"
        echo overlay
    else
        echo vfs
    fi
}

start_docker() {
    local driver=$1
    [[ $driver == vfs ]] || driver=overlay2
    export DOCKER_HOST=unix://$tmp/docker.sock DOCKER_CONFIG=$tmp/docker.config
    unset DOCKER_CONTEXT DOCKER_TLS_VERIFY
    PATH=/usr/sbin:/usr/bin:/sbin:/bin dockerd --storage-driver="$driver" --iptables=false \
        --ip6tables=false --bridge=none --data-root="$tmp/docker" --exec-root="$tmp/exec" \
        --pidfile="$tmp/docker.pid" --host="$DOCKER_HOST" >"$tmp/dockerd.log" 2>&1 &
    children+=("$!")
    # The programs of the packages just installed, whatever else is on PATH.
    mkdir "$tmp/bin" "$DOCKER_CONFIG"
    echo '{}' >"$DOCKER_CONFIG/config.json"
    ln -s /usr/bin/docker "$tmp/bin/docker"
    PATH=$tmp/bin:$PATH
    local attempt
    for attempt in {1..60}; do
        if docker version >/dev/null 2>&1; then
            say "docker $(docker version --format '{{.Server.Version}}'), storage $driver"
            return
        fi
        kill -0 "${children[-1]}" 2>/dev/null || break
        sleep 1
    done
    tail -20 "$tmp/dockerd.log" >&2
    fail "dockerd does not answer (tried $attempt times)"
}

label() { docker inspect --format "{{index .Config.Labels \"org.opencontainers.image.$1\"}}" "$IMAGE"; }

in_image() { docker run --rm "$@"; }

becomes_healthy() {
    local name=linumpy-health state
    docker run --detach --name "$name" --health-interval=2s "$IMAGE" sleep 120
    for _ in {1..60}; do
        state=$(docker inspect --format '{{.State.Health.Status}}' "$name")
        [[ $state == starting ]] || break
        sleep 1
    done
    docker inspect --format '{{json .State.Health}}' "$name"
    docker rm --force "$name"
    [[ $state == healthy ]]
}

# Nothing of how this machine reaches its packages is in the image: no file, address or certificate.
keeps_secrets() {
    local secrets=$1 word file
    { sed -n 's/^[^=]*= *//p' "$secrets"/pip.* && awk '{ print $2 }' "$secrets/apt.list"; } \
        2>/dev/null | grep -E '://|@' | sort -u >"$tmp/words" || true
    for file in /usr/local/share/ca-certificates/*.crt; do
        [[ ! -f $file ]] || sed -n 2p "$file" >>"$tmp/words"
    done
    # Debian's own address is in every Debian.
    while IFS= read -r word; do
        [[ $word != http*://deb.debian.org/* ]] || continue
        if in_image --user 0 "$IMAGE" grep -rlsF -- "$word" /etc /home /opt /root; then
            return 1
        fi
    done <"$tmp/words"
    in_image --user 0 "$IMAGE" bash -euc '
        [[ ! -e /etc/pip.conf && ! -s /etc/apt/sources.list ]]
        [[ -z $(find /etc/apt/sources.list.d /run/secrets /root/.config -type f 2>/dev/null) ]]'
}

check_image() {
    local secrets=$1 revision=$2 version
    version=$("$BIN/python" -c 'import linumpy; print(linumpy.__version__)')
    expect "label: version $version" test "$(label version)" = "$version"
    expect "label: revision $revision" test "$(label revision | cut -d- -f1)" = "$revision"
    expect "the user is not root" in_image "$IMAGE" bash -c '[[ $(id -u) != 0 ]]'
    expect "linum_gpu_info.py finds no GPU and is content" in_image "$IMAGE" linum_gpu_info.py
    expect "linum_gpu_info.py --use_gpu is not" in_image "$IMAGE" \
        bash -c 'linum_gpu_info.py --use_gpu --json >/dev/null; [[ $? == 1 ]]'
    expect "anybody can use it, without writing to it" in_image --read-only --user 4321:4321 \
        "$IMAGE" linum_gpu_info.py
    expect "the health check says healthy" becomes_healthy
    expect "every module of linumpy can be imported" in_image --interactive "$IMAGE" \
        python - <"$ROOT/tests/project/import_all.py"
    expect "no tools of building, no caches" in_image --user 0 "$IMAGE" bash -euc '
        for name in pip pip3 gcc git; do if command -v $name; then exit 1; fi; done
        [[ ! -e /opt/tools && ! -e /root/.cache && -z $(find /var/lib/apt/lists /tmp -mindepth 1) ]]'
    expect "nothing of how this machine reaches packages" keeps_secrets "$secrets"
    say "size of the image: $(docker image inspect --format '{{.Size}}' "$IMAGE" |
        awk '{ printf "%.0f MB", $1 / 1e6 }')"
}

# run NAME OPTION...: the pipeline on the phantom, into a folder of that name.
run() {
    local name=$1 start=$SECONDS
    shift
    mkdir -p "$tmp/launch"
    (cd "$tmp/launch" && "$BIN/linum_nextflow.py" run "$ROOT/main.nf" -ansi-log false \
        --input "$tmp/phantom/raw" --output "$tmp/$name" --subject_name tiny \
        --crop_interface_out_depth 300 "$@") \
        >"$tmp/$name.log" 2>&1 || { tail -60 "$tmp/$name.log" >&2; fail "the run $name"; }
    say "ok: the run $name, $((SECONDS - start)) s"
    rm -rf "$tmp/launch/work"
}

check_podman() {
    local driver=$1
    cat >"$tmp/storage.conf" <<END
[storage]
driver = "$driver"
graphroot = "$tmp/podman"
runroot = "$tmp/podman-run"
END
    cat >"$tmp/containers.conf" <<END
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "$tmp/podman-tmp"
[containers]
netns = "host"
# Podman sets limits of its own, beyond what this machine's root may.
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
END
    export CONTAINERS_STORAGE_CONF=$tmp/storage.conf CONTAINERS_CONF=$tmp/containers.conf
    docker save "$IMAGE" | podman load --quiet >/dev/null
    expect "podman $(podman version --format '{{.Client.Version}}') runs the image" \
        podman run --rm --no-healthcheck "$IMAGE" linum_gpu_info.py
    # Without the work itself: what is mounted, who writes, what is passed on.
    run podman -profile test,podman -stub-run
}

if [[ $EUID != 0 ]]; then
    say "skipped: not root"
    exit 0
fi
# shellcheck source=/dev/null
. /etc/os-release
if [[ ${ID:-} != debian ]]; then
    say "skipped: not Debian but ${PRETTY_NAME:-unknown}"
    exit 0
fi

export TMPDIR=${TMPDIR:-/tmp}
tmp=$(mktemp -d "$TMPDIR/linumpy-containers.XXXXXX")
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
free=$(df --output=avail -B 1G "$tmp" | tail -1)
[[ $free -ge $GB_NEEDED ]] || fail "$tmp: $GB_NEEDED GB are needed, ${free// /} are free"
IMAGE=linumpy:cpu

[[ -n $(apt-get indextargets 'Created-By: Packages') ]] || apt-get -qq update
packages=(debootstrap docker.io podman runc)
# From Debian 13 on, what builds is a package of its own.
if [[ -n $(apt-cache --quiet=0 madison docker-buildx 2>/dev/null) ]]; then
    packages+=(docker-buildx docker-cli)
fi
install_packages "${packages[@]}"

"$ROOT/containers/secrets.sh" "$tmp/secrets"
say "making a base image of Debian $VERSION_CODENAME"
make_base "$tmp/secrets"
driver=$(storage_driver)
start_docker "$driver"
tar -C "$tmp/base" -c . | docker import - linumpy-base:debian >/dev/null
rm -rf "$tmp/base"

say "building the image"
start=$SECONDS
revision=$(git -C "$ROOT" rev-parse HEAD 2>/dev/null || echo unknown)
"$ROOT/containers/build.sh" cpu --network=host --progress=plain \
    --build-arg BASE_IMAGE=linumpy-base:debian >"$tmp/build.log" 2>&1 ||
    { tail -60 "$tmp/build.log" >&2; fail "the build"; }
say "ok: built in $((SECONDS - start)) s"
check_image "$tmp/secrets" "$revision"

"$BIN/linum_phantom.py" "$tmp/phantom" --preset tiny --seed 20 >"$tmp/phantom.log" 2>&1 ||
    { cat "$tmp/phantom.log" >&2; fail "the phantom"; }
# Slices as thin as above leave a gap here, which a default step must fill.
rm -r "$tmp/phantom/raw/slice_z01"
run docker -profile test,docker
expect "the gap was filled" grep -q '^01,.*,true,false,zmorph,$' "$tmp/docker/slice_config.csv"
run bare -profile test
"$BIN/python" "$ROOT/tests/containers/compare_brains.py" "$tmp/docker/tiny.ome.zarr" \
    "$tmp/bare/tiny.ome.zarr" || fail "the brain made in containers is another one"
expect "results belong to who launched the run" \
    test -z "$(find "$tmp/docker" "$tmp/launch" ! -uid "$EUID" -print -quit)"
check_podman "$driver"
say "passed in $SECONDS s"
