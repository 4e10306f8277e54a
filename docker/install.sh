#!/bin/sh
# A build step: installs /requirements.txt, after the wheels in /wheels, into the virtual environment.
set -eu

# The indexes are asked in the order given, and no other is: the last stands where uv would ask PyPI. All of them are
# asked for each name, because PyTorch's index also carries a few old versions of others' packages.
export UV_INDEX="${INDEX_URL% *}" UV_DEFAULT_INDEX="${INDEX_URL##* }" UV_INDEX_STRATEGY=unsafe-best-match

# A requirement that a local wheel meets is not installed again, so the hash is waived for these files alone.
set -- /wheels/*.whl
if [ -e "$1" ]; then
    uv pip install --no-index --no-deps "$@"
fi
# The requirements are the whole closure; following torch's own list would bring CUDA's libraries back.
uv pip install --no-deps --require-hashes -r /requirements.txt

# Of torch's programs only this one is called at run time. Its headers stay, though they are 39 MB: torch.compile and
# C++ extensions need them in an image that adds a compiler to this one.
find "${VIRTUAL_ENV}"/lib/python3*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete
