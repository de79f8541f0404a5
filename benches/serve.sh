#!/usr/bin/env bash
# Measures `skippy-stage serve` against llama-server: the same model file, threads, lanes, context and cache type, both
# with their defaults otherwise, in turns. Extra arguments go to `skippy-stage bench serve`.
#
#   benches/serve.sh [--rounds 6] [--streams 1,4,16] [--json] ...
#
# LANES, CTX (tokens of one request) and THREADS change both servers, OURS and THEIRS hold more flags of each.

set -euo pipefail
. "$(dirname "$0")/../scripts/lib.sh"
cd "$ROOT"

BIN=${SKIPPY_BIN:-${CARGO_TARGET_DIR:-target}/release/skippy-stage}
LANES=${LANES:-16}
CTX=${CTX:-2560}
THREADS=${THREADS:-$(nproc)}
GGUF=${GGUF:-$MODELS/SmolLM2-135M-Instruct.Q4_1.gguf}
PACKAGE=${PACKAGE:-}
OUR_PORT=${OUR_PORT:-9441}
THEIR_PORT=${THEIR_PORT:-9442}
LOGS=${LOGS:-$(mktemp -d)}

[ -x "$BIN" ] || die "$BIN is not there: run \`make build\` first"
SERVER=${LLAMA_SERVER:-$(benches/build-llama-server.sh)}
[ -n "$PACKAGE" ] || PACKAGE=$(scripts/package-model.sh smollm2)

started=()
# shellcheck disable=SC2317 # called by the trap
stop() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
}
trap stop EXIT

# shellcheck disable=SC2086 # several flags
"$BIN" serve "$PACKAGE" --bind "127.0.0.1:$OUR_PORT" --lanes "$LANES" --ctx-size "$CTX" --threads "$THREADS" \
    ${OURS:-} >"$LOGS/ours.log" 2>&1 &
started+=($!)
# shellcheck disable=SC2086
"$SERVER" -m "$GGUF" --host 127.0.0.1 --port "$THEIR_PORT" -np "$LANES" -c $((LANES * CTX)) -t "$THREADS" \
    --no-webui ${THEIRS:-} >"$LOGS/theirs.log" 2>&1 &
started+=($!)

for port in "$OUR_PORT" "$THEIR_PORT"; do
    for ((i = 0; ; i++)); do
        curl -fsS "http://127.0.0.1:$port/health" >/dev/null 2>&1 && break
        [ "$i" -lt 300 ] || die "no server on port $port; logs in $LOGS"
        sleep 0.2
    done
done
say "logs in $LOGS"
"$BIN" bench serve --url "http://127.0.0.1:$OUR_PORT" --peer "http://127.0.0.1:$THEIR_PORT" "$@"
