# shellcheck shell=bash
# shellcheck disable=SC2034 # what is set here is used by the scripts that source it
# Shared by the scripts beside it; sourced, never run. Sets ROOT, CACHE and MODELS.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=$ROOT/.cache
MODELS=${SKIPPY_MODEL_CACHE:-$CACHE/models}

# pip warns when it runs as root; nothing here is installed outside .cache.
export PIP_ROOT_USER_ACTION=ignore

say() { printf '%s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root: directly, or through sudo. Prompts for a password only on a terminal.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

can_be_root() { [ "$(id -u)" = 0 ] || have sudo; }

APT_REFRESHED=
# apt_install PACKAGE...: installs Debian packages without questions; the package lists are refreshed once.
apt_install() {
    say "installing $*"
    if [ -z "$APT_REFRESHED" ]; then
        as_root apt-get update -qq || say "warning: apt-get update failed; trying the package lists that are here"
        APT_REFRESHED=1
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# sha256_is FILE DIGEST
sha256_is() {
    local got
    if have sha256sum; then
        got=$(sha256sum "$1")
    else
        got=$(shasum -a 256 "$1")
    fi
    [ "${got%% *}" = "$2" ]
}

# A python3 that has pip, in $PYTHON; installs python3-pip where that is possible.
need_pip() {
    PYTHON=${PYTHON:-python3}
    if "$PYTHON" -m pip --version >/dev/null 2>&1; then
        return
    fi
    if have apt-get && can_be_root; then
        apt_install python3 python3-pip
    fi
    "$PYTHON" -m pip --version >/dev/null 2>&1 ||
        die "$PYTHON with pip is needed to fetch from PyPI: install python3 and python3-pip, or set PYTHON to one that has it"
}

# node, 18 or newer, with npm; installs both where that is possible.
need_node() {
    if ! { have node && have npm; } && have apt-get && can_be_root; then
        apt_install nodejs npm
    fi
    { have node && have npm; } || die "node and npm are needed for the tests of the JavaScript client: install Node 18 or newer"
    node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 18 ? 0 : 1)' ||
        die "node $(node --version) is too old: 18 or newer is needed"
}
