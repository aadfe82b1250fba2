#!/usr/bin/env bash
# Gather how this machine reaches its packages: containers/secrets.sh FOLDER
#
# Writes to FOLDER what steps.sh looks for, and nothing where there is nothing to tell: pip.conf and
# pip.env (pip's configuration files and PIP_… variables), ca.crt (where a certificate file is named
# in the environment or in pip's configuration), apt.list and apt.conf (on Debian).
set -euo pipefail

folder=${1:?usage: containers/secrets.sh FOLDER}
mkdir -p "$folder"
chmod 700 "$folder"

# The file that pip reads last of those there are, so that it wins as it does here.
for file in /etc/xdg/pip/pip.conf /etc/pip.conf ~/.pip/pip.conf ~/.config/pip/pip.conf \
    "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf" "${PIP_CONFIG_FILE:-}"; do
    if [[ -f $file ]]; then
        cp "$file" "$folder/pip.conf"
    fi
done

# Variables, but not those that name a file or folder of this machine.
env | grep -E '^PIP_[A-Z_]+=[^/]' >"$folder/pip.env" || rm "$folder/pip.env"

named=$(sed -n 's/^ *cert *= *//p' "$folder/pip.conf" 2>/dev/null || true)
for file in "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}" \
    "$named"; do
    if [[ -f $file ]]; then
        cp "$file" "$folder/ca.crt"
        break
    fi
done

# apt's sources in whatever form they are kept, those of the distribution alone. apt tells them only
# once they were fetched: where `apt-get update` never ran there are none.
if command -v apt-get >/dev/null; then
    # shellcheck disable=SC2016  # these names are apt's
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT) @$(ORIGIN)' \
        'Created-By: Packages' |
        sed -nE 's/ @(Debian|Ubuntu)$//p' | sort -u >"$folder/apt.list"
    [[ -s $folder/apt.list ]] || rm "$folder/apt.list"
    apt-config dump Acquire::http Acquire::https Acquire::Check-Valid-Until Acquire::Check-Date |
        grep -vE '^Acquire(::https?)? "";$' >"$folder/apt.conf" || rm "$folder/apt.conf"
fi
