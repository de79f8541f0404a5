#!/usr/bin/env bash
# Whether a folder of scripts/release.sh works where it was not built: a copy, elsewhere and without the environment of this
# shell, serves the bundled model once. Without its CPU libraries it must end with an error that names their folder.
#
#   scripts/check-release.sh FOLDER
#
# RUN goes before the program: RUN="qemu-x86_64 -cpu Nehalem" stands in for an old processor.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

PROMPT='{"prompt": "And it came to pass in those days, that", "max_tokens": 16, "temperature": 0}'
PATIENCE=${PATIENCE:-120}

have curl || die "curl is needed to ask the server"
[ -x "${1:-}/bin/skippy-stage" ] || die "${1:-no folder given}: no bin/skippy-stage in it"
scratch=$(mktemp -d)
pid=
# shellcheck disable=SC2317 # called by the trap
stop() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap stop EXIT
cp -a "$1" "$scratch/moved"
cp -a "$ROOT/assets/skippy-kjv-6m" "$scratch/model"
log=$scratch/log
fail() {
    cat "$log" >&2
    die "$1: $2"
}

# shellcheck disable=SC2086 # several words
serve() { exec env -i PATH=/usr/bin:/bin "$@" ${RUN:-} "$scratch/moved/bin/skippy-stage" serve "$scratch/model" --bind 127.0.0.1:0 2>"$log"; }

(cd / && serve NO_COLOR=1) &
pid=$!
url=
for ((i = 0; ; i++)); do
    url=$(grep -o 'http://127[0-9.:]*' "$log" 2>/dev/null | head -n 1) || true
    [ -z "$url" ] || ! curl -fsS "$url/readyz" >/dev/null 2>&1 || break
    kill -0 "$pid" 2>/dev/null || fail "$1" "the server ended"
    [ "$i" -lt $((PATIENCE * 5)) ] || fail "$1" "the server is not ready after $PATIENCE s"
    sleep 0.2
done
chosen=$(grep -o 'code for this CPU.*' "$log") || fail "$1" "the log does not say which code for the CPU it runs"
answer=$(curl -fsS "$url/v1/completions" -H 'Content-Type: application/json' -d "$PROMPT") || fail "$1" "no answer"
[[ $answer == *'"completion_tokens":16,'* ]] || fail "$1" "not 16 tokens: $answer"
# What the build left behind may hide a library that is missing in the folder.
if [ -r "/proc/$pid/maps" ]; then
    strange=$(grep -oE '/[^ ]*/lib(llama|ggml)[^ ]*' "/proc/$pid/maps" | sort -u | grep -vF "$scratch/moved/" || true)
    [ -z "$strange" ] || fail "$1" "it uses libraries from elsewhere: $strange"
fi
kill "$pid"
wait "$pid" || fail "$1" "it did not end in peace"
pid=

rm "$scratch"/moved/lib/libggml-cpu*
# Leaves with an error, and never by a signal.
code=0
(cd / && serve) || code=$?
[ "$code" = 1 ] || fail "$1" "exit code $code without libraries, not 1"
grep -q "^error: .*$scratch/moved/lib" "$log" || fail "$1" "no word of the folder that has no libraries"
say "a moved copy of $1 serves; $chosen; $(grep -o '"text":"[^"]*"' <<<"$answer")"
