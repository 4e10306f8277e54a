#!/usr/bin/env bash
# Measures on a GPU, without a network: in .venv if it is there, else with this machine's own Python, which must have
# PyTorch, and with those of the wheels in build/bench-gpu that it lacks. The argument `cpu` rehearses on CPUs.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -e build/bench-gpu/commit ]; then
    echo "bench-gpu: build/bench-gpu is not there: run make bench-gpu-pack where there is a network" >&2
    exit 2
fi
found='import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))'
if .venv/bin/python -c "$found" torch accelerate lightning psutil 2>/dev/null; then
    exec .venv/bin/python -m bench.gpu "$@"
fi
python=${PYTHON:-python3}
"$python" -m bench.pack install
PYTHONPATH=$PWD/build/bench-gpu-made/site:$PWD/trainer:$PWD exec "$python" -m bench.gpu "$@"
