#!/usr/bin/env bash
# Creates .venv from trainer/uv.lock. Passes its arguments to `uv sync`, which also reads UV_* variables (an index, a
# folder of wheels).
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v uv) || uv=.tools/uv/bin/uv
if [ ! -x "$uv" ]; then
    python=${PYTHON:-python3}
    if ! "$python" -m venv --clear .tools/uv >/dev/null; then
        rm -rf .tools/uv
        echo "cannot create a virtual environment with $python: install its venv module (Debian: python3-venv), or put uv on PATH" >&2
        exit 1
    fi
    .tools/uv/bin/python -m pip install --quiet --require-hashes --requirement tools/uv.txt
fi
UV_PROJECT_ENVIRONMENT=$PWD/.venv exec "$uv" sync --project trainer --frozen "$@"
