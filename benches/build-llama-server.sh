#!/usr/bin/env bash
# Builds the llama-server that `skippy-stage bench serve` measures against, and prints its path.
#
# The sources are those that the sdist of llama-cpp-python on PyPI carries; nothing is patched. ggml is built with the
# options that llama-cpp-sys-2 gives it here: this machine's own instructions, no OpenMP, no BLAS, tinyBLAS and repacking
# as ggml has them by default.
#
#   benches/build-llama-server.sh [DIRECTORY]      default: .cache/llama-server

set -euo pipefail
. "$(dirname "$0")/../scripts/lib.sh"

SDIST=llama-cpp-python==0.3.36
DIR=${1:-$CACHE/llama-server}
SERVER=$DIR/build/bin/llama-server

if [ ! -x "$SERVER" ]; then
    need_pip
    have cmake || die "cmake is not there: run \`make setup\` first"
    mkdir -p "$DIR/sdist"
    say "fetching $SDIST"
    "$PYTHON" -m pip download -q --no-deps --no-binary llama-cpp-python -d "$DIR/sdist" "$SDIST" >&2
    rm -rf "$DIR/source"
    mkdir -p "$DIR/source"
    tar -xf "$DIR"/sdist/llama_cpp_python-*.tar.gz -C "$DIR/source" --strip-components=1
    say "building llama-server (10 to 20 minutes on two cores)"
    cmake -S "$DIR/source/vendor/llama.cpp" -B "$DIR/build" \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_BLAS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >&2
    cmake --build "$DIR/build" --target llama-server -j "${JOBS:-$(nproc)}" >&2
fi
say "$("$SERVER" --version 2>&1 | head -n 1), ggml $(sed -n 's/^set(GGML_VERSION_[A-Z]* \([0-9]*\)).*/\1/p' \
    "$DIR/source/vendor/llama.cpp/ggml/CMakeLists.txt" | paste -sd.); ours: ggml $(sed -n \
    's/^ggml_version = "\(.*\)"/\1/p' "$ROOT/vendor/PIN.toml")"
printf '%s\n' "$SERVER"
