#!/usr/bin/env bash
# The kernels under address and undefined-behaviour sanitizers, against references in double precision, with every variant that
# this machine can run.
#   scripts/check-kernels.sh [CASES [FIRST]]      random cases (default 400)
#   scripts/check-kernels.sh --fuzz SECONDS       coverage-guided, with clang's libFuzzer
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
include=$(find "$target"/release/build -path '*/llama-cpp-sys-2-*/out/include/ggml.h' -printf '%h\n' 2>/dev/null | head -n 1)
if [ -z "$include" ]; then
    echo "no headers of llama.cpp under $target/release/build: run \`make build\` first" >&2
    exit 1
fi

# Looking for leaks needs rights that containers often lack; what a thread keeps is freed at its end.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}

fuzz=
if [ "${1:-}" = --fuzz ]; then
    fuzz=${2:-600}
    CXX=${CXX:-clang++}
    command -v "$CXX" >/dev/null || { echo "fuzzing needs clang (Debian: clang, libclang-rt-14-dev)" >&2; exit 1; }
fi
CXX=${CXX:-c++}
out=$target/check-kernels${fuzz:+-fuzz}
mkdir -p "$out"

case $(uname -m) in
    x86_64) variants=(portable avx2 avx512) ;;
    aarch64 | arm64) variants=(portable neon) ;;
    *) variants=(portable) ;;
esac
has=("${variants[@]^^}")
has=("${has[@]/#/-DSKIPPY_HAS_}")
flags_of() { # the same as in build.rs
    case $1-$(uname -m) in
        portable-x86_64) echo -march=x86-64 -DSKIPPY_PORTABLE ;;
        portable-*) echo -DSKIPPY_PORTABLE ;;
        avx2-*) echo -march=x86-64 -mavx2 -mfma -mf16c ;;
        avx512-*) echo -march=x86-64-v3 -mavx512f -mavx512bw -mavx512dq -mavx512vl ;;
    esac
}

sanitize=(-g -O1 "-fsanitize=address,undefined" -fno-sanitize-recover=all -fno-omit-frame-pointer)
[ -z "$fuzz" ] || sanitize+=(-fsanitize=fuzzer-no-link -DSKIPPY_FUZZER)
common=(-std=c++17 -Wall -Wextra -Wno-psabi "${sanitize[@]}" -I kernels -I "$include")
objects=()
compile() { # NAME SOURCE FLAGS...
    local object=$out/$1.o
    "$CXX" "${common[@]}" "${@:3}" -c "$2" -o "$object" &
    objects+=("$object")
    [ "$(jobs -pr | wc -l)" -lt "$(nproc)" ] || wait -n
}
for source in kernels/check/*.cpp; do
    compile "check-$(basename "$source" .cpp)" "$source"
done
compile dispatch kernels/dispatch.cpp "${has[@]}"
for variant in "${variants[@]}"; do
    read -ra flags < <(flags_of "$variant")
    for source in kernels/variant/*.cpp; do
        compile "$variant-$(basename "$source" .cpp)" "$source" "-DSKIPPY_VARIANT=$variant" "${flags[@]}"
    done
done
while [ "$(jobs -pr | wc -l)" -gt 0 ]; do wait -n; done

# A function that the linker merges across variants would run with the wrong instructions on some machine.
for variant in "${variants[@]}"; do
    shared=$(nm -C "$out/$variant"-*.o | grep -E ' [Wu] ' | grep -vE "skippy::$variant::|__odr_asan|asan|ubsan|DW\.ref" || true)
    if [ -n "$shared" ]; then
        echo "$variant: the linker may take these from another variant:" >&2
        echo "$shared" >&2
        exit 1
    fi
done

if [ -n "$fuzz" ]; then
    "$CXX" "${sanitize[@]}" -fsanitize=fuzzer "${objects[@]}" -o "$out/fuzz"
    mkdir -p "$out/corpus"
    exec "$out/fuzz" -max_total_time="$fuzz" -max_len=96 -len_control=0 -timeout=60 -report_slow_units=60 -artifact_prefix="$out/" "$out/corpus"
fi
"$CXX" "${sanitize[@]}" "${objects[@]}" -o "$out/check"
exec "$out/check" "${1:-400}" "${2:-0}"
