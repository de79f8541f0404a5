#!/usr/bin/env bash
# Runs tests/node: the official OpenAI client for JavaScript against real server processes on the bundled model.
# Arguments go to `node --test`. SKIPPY_BIN names the server to test; the default is the release build.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
SKIPPY_BIN=${SKIPPY_BIN:-${CARGO_TARGET_DIR:-target}/release/skippy-stage}
[ -x "$SKIPPY_BIN" ] || die "$SKIPPY_BIN is not there: run \`make build\` first"
SKIPPY_BIN=$(cd "$(dirname "$SKIPPY_BIN")" && pwd)/$(basename "$SKIPPY_BIN")
export SKIPPY_BIN

# The client lies with everything else that is fetched. Node finds packages only beside the files that want them, hence
# the link.
need_node
site=$CACHE/node/$(cksum <tests/node/package-lock.json | cut -d' ' -f1)
if [ ! -d "$site" ]; then
    say "installing the Node packages of the tests"
    rm -rf "$CACHE/node"
    mkdir -p "$site.part"
    cp tests/node/package.json tests/node/package-lock.json "$site.part"
    npm ci --prefix "$site.part" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
    mv "$site.part" "$site"
fi
ln -sfn "$site/node_modules" tests/node/node_modules

exec node --test --test-reporter=spec "$@" tests/node/*.test.mjs
