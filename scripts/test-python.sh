#!/usr/bin/env bash
# Runs tests/python: the official OpenAI client and promtool against real server processes.
# Arguments go to pytest. SKIPPY_BIN names the server to test; the default is the release build.

set -euo pipefail
. "$(dirname "$0")/lib.sh"

cd "$ROOT"
SKIPPY_BIN=${SKIPPY_BIN:-${CARGO_TARGET_DIR:-target}/release/skippy-stage}
[ -x "$SKIPPY_BIN" ] || die "$SKIPPY_BIN is not there: run \`make build\` first"
SKIPPY_PACKAGE_BIN=${SKIPPY_PACKAGE_BIN:-$(dirname "$SKIPPY_BIN")/skippy-model-package}
export SKIPPY_BIN SKIPPY_PACKAGE_BIN

# The packages live in a folder of their own: no virtual environment is needed and the system's Python is left alone.
need_pip
requirements=tests/python/requirements.txt
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
site=$CACHE/py/$version-$(cksum <$requirements | cut -d' ' -f1)
if [ ! -d "$site" ]; then
    say "installing the Python packages of the tests"
    rm -rf "$CACHE/py"
    mkdir -p "$CACHE/py"
    "$PYTHON" -m pip --quiet --disable-pip-version-check --no-input install --no-warn-conflicts \
        --target "$site.part" --requirement $requirements >&2
    mv "$site.part" "$site"
fi

SKIPPY_TEST_PACKAGE=$(scripts/package-model.sh smollm2)
export SKIPPY_TEST_PACKAGE
PATH=$PATH:$CACHE/promtool PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1 \
    exec "$PYTHON" -m pytest -p no:cacheprovider tests/python "$@"
