#!/usr/bin/env bash
# Installs what the build needs and this machine lacks; says what to do where it cannot. Quiet when nothing is missing.
#
#   scripts/setup.sh          the build: cargo, a C++ compiler, cmake, libclang
#   scripts/setup.sh test     also the checks: rustfmt, clippy, python3 with pip, node with npm, promtool

set -euo pipefail
. "$(dirname "$0")/lib.sh"

MIN_RUST=1.88

# Whether libclang and clang's own headers (a package of their own on Debian) are where bindgen looks for them.
have_libclang() {
    # Someone who sets this knows.
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    local dirs=() dir library="" headers=""
    dirs+=(/usr/lib/llvm*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib /usr/local/llvm*/lib)
    dirs+=(/opt/homebrew/opt/llvm/lib /usr/local/opt/llvm/lib /Library/Developer/CommandLineTools/usr/lib)
    dirs+=(/Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib)
    ! have llvm-config || dirs+=("$(llvm-config --libdir)")
    for dir in "${dirs[@]}"; do
        if compgen -G "$dir/libclang*.so*" >/dev/null || [ -e "$dir/libclang.dylib" ]; then
            library=$dir
        fi
        if compgen -G "$dir/clang/*/include/stddef.h" >/dev/null; then
            headers=$dir
        fi
    done
    [ -n "$library" ] && [ -n "$headers" ]
}

have_cxx() { have "${CXX:-c++}" || have g++ || have clang++; }

check_rust() {
    have cargo || die "cargo is not installed: install Rust $MIN_RUST or newer with rustup, then run this again"
    local version
    version=$(rustc --version | awk '{ print $2 }')
    printf '%s\n%s\n' "$MIN_RUST" "${version%%-*}" | sort -t. -k1,1n -k2,2n -C ||
        die "rust $version is too old: $MIN_RUST or newer is needed (rustup update)"
}

# Prints one word for each missing build tool.
missing_build_tools() {
    have_cxx || echo c++
    have make || echo make
    have cmake || echo cmake
    have_libclang || echo libclang
}

setup_build() {
    check_rust
    local missing
    missing=$(missing_build_tools)
    if [ -z "$missing" ]; then
        return
    fi
    local words
    words=$(tr "\n" " " <<<"$missing")
    words=${words% }
    if have apt-get; then
        can_be_root || die "missing: $words. run as root: apt-get install g++ make cmake libclang-dev"
        local packages=() word
        for word in $missing; do
            case $word in
            c++) packages+=(g++) ;;
            libclang) packages+=(libclang-dev) ;;
            *) packages+=("$word") ;;
            esac
        done
        apt_install "${packages[@]}"
    elif [ "$(uname -s)" = Darwin ]; then
        die "missing: $words. install them with: xcode-select --install && brew install cmake llvm"
    elif have dnf; then
        die "missing: $words. install them with: sudo dnf install gcc-c++ make cmake clang-devel"
    elif have pacman; then
        die "missing: $words. install them with: sudo pacman -S base-devel cmake clang"
    elif have apk; then
        die "missing: $words. install them with: apk add build-base cmake clang-dev"
    else
        die "missing: $words. install a C++ compiler, make, cmake and libclang (set LIBCLANG_PATH if it lies elsewhere)"
    fi
    missing=$(missing_build_tools)
    [ -z "$missing" ] || die "still missing after the install: $(tr "\n" " " <<<"$missing")"
}

setup_rust_components() {
    local component
    for component in fmt clippy; do
        if cargo "$component" --version >/dev/null 2>&1; then
            continue
        fi
        have rustup || die "cargo $component is not installed: add the rustfmt and clippy of this toolchain"
        rustup component add rustfmt clippy >&2
    done
}

# promtool comes inside Debian's package of the whole Prometheus server; only the one file is taken out of it, so that
# no service is installed or started.
setup_promtool() {
    if have promtool || [ -x "$CACHE/promtool/promtool" ]; then
        return
    fi
    have apt-get || die "promtool is not installed: it comes with Prometheus (brew install prometheus, or your distribution's package)"
    say "fetching promtool"
    local work
    work=$(mktemp -d)
    chmod 755 "$work"
    (
        cd "$work"
        apt-get -o APT::Sandbox::User=root download -qq prometheus >&2 || {
            as_root apt-get update -qq >&2
            apt-get -o APT::Sandbox::User=root download -qq prometheus >&2
        }
        dpkg -x prometheus_*.deb tree
    )
    mkdir -p "$CACHE/promtool"
    mv "$work/tree/usr/bin/promtool" "$CACHE/promtool/promtool"
    rm -rf "$work"
    "$CACHE/promtool/promtool" --version >/dev/null || die "the fetched promtool does not run"
}

setup_build
case ${1:-build} in
build) ;;
test)
    setup_rust_components
    need_pip
    need_node
    setup_promtool
    ;;
*) die "usage: scripts/setup.sh [build|test]" ;;
esac
