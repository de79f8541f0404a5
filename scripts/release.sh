#!/usr/bin/env bash
# Makes dist/skippy-stage-VERSION-TARGET: the programs, ggml and llama.cpp as shared libraries, and the notices. The folder runs
# wherever it is moved, on any machine of the same kind whose C and C++ libraries are not older than those of this one. Prints its
# path once check-release.sh is content with it.
#
#   scripts/release.sh [TARGET_DIR]     where cargo builds; `portable` in its usual place when left out, since other builds
#                                       have other flags

set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
export CARGO_TARGET_DIR=${1:-${CARGO_TARGET_DIR:-target}/portable}
# Nothing about the processor of this machine: what .cargo/config.toml says goes for other builds.
unset CARGO_ENCODED_RUSTFLAGS
export RUSTFLAGS=
# The libraries find each other in the folder they are in.
# shellcheck disable=SC2016
case $(uname) in
Darwin) export CMAKE_INSTALL_RPATH=@loader_path ;;
*) export CMAKE_INSTALL_RPATH='$ORIGIN' ;;
esac

events=$(mktemp)
trap 'rm -f "$events"' EXIT
cargo build --locked --release --features portable --bins --message-format=json-render-diagnostics >"$events"
libraries=$(grep '"build-script-executed"' "$events" | grep 'llama-cpp-sys-2' | sed 's/.*"out_dir":"\([^"]*\)".*/\1/' | head -n 1)
[ -d "$libraries/backends" ] || die "cargo does not say where it put the libraries of llama.cpp"

version=$(cargo pkgid)
host=$(rustc -vV | sed -n 's/^host: //p')
dist=dist/skippy-stage-${version##*[#@]}-$host
rm -rf "$dist"
mkdir -p "$dist/bin" "$dist/lib" "$dist/licences"
cp "$CARGO_TARGET_DIR"/release/skippy-stage "$CARGO_TARGET_DIR"/release/skippy-model-package "$dist/bin"
# With their links: a program asks for the name that ends in the version of the interface.
find "$libraries"/lib* -maxdepth 1 \( -name '*.so*' -o -name '*.dylib' \) -exec cp -a {} "$dist/lib" \;
cp "$libraries"/backends/* "$dist/lib"
cp LICENSE LICENSE-APACHE LICENSE-MIT vendor/LICENSES/* "$dist/licences"
scripts/check-release.sh "$dist"
printf '%s\n' "$dist"
