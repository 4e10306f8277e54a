#!/bin/sh
# A build step: installs /requirements.txt, after the wheels in /wheels, into the virtual environment.
set -eu

# What a local wheel meets is not installed again, so the hash is waived for these files alone.
set -- /wheels/*.whl
if [ -e "$1" ]; then
    pip install --no-cache-dir --no-index --no-deps "$@"
fi

# All indexes are asked for each name, and of the files whose hash is listed the newest is taken: torch X+cpu of
# PyTorch's index before torch X of PyPI. The requirements are the whole closure, hence --no-deps; torch's own list
# would bring CUDA's libraries back.
export PIP_INDEX_URL="${INDEX_URL%% *}" PIP_EXTRA_INDEX_URL="${INDEX_URL#* }"
pip install --no-deps --require-hashes -r /requirements.txt

# Of torch's programs only this one is called at run time. Its headers stay, though they are 39 MB: torch.compile and
# C++ extensions need them in an image that adds a compiler to this one.
find "${VIRTUAL_ENV}"/lib/python3*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete
