#!/bin/sh
# A build step: installs the wheels in /wheels, then /requirements.txt, into the virtual environment.
set -eu

# pip doesn't reinstall packages that a local wheel provides, so only these skip the hash check.
set -- /wheels/*.whl
if [ -e "$1" ]; then
    pip install --no-cache-dir --no-index --no-deps "$@"
fi

# pip queries all indexes and takes the newest file with a listed hash: torch X+cpu from PyTorch's index before torch
# X from PyPI. --no-deps, because the requirements are complete, and torch's own would add the CUDA libraries again.
export PIP_INDEX_URL="${INDEX_URL%% *}" PIP_EXTRA_INDEX_URL="${INDEX_URL#* }"
pip install --no-deps --require-hashes -r /requirements.txt

# Of torch's programs, the image needs only this one. torch's headers (39 MB) stay: torch.compile and C++ extensions
# need them in an image that adds a compiler.
find "${VIRTUAL_ENV}"/lib/python3*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete

# Multi-GPU cuSOLVER and the alternative NVRTC: no shared library links or opens them. The build fails if a later
# library does, because the image would fail at run time.
packages=$(echo "${VIRTUAL_ENV}"/lib/python3*/site-packages)
if [ -d "$packages/nvidia" ]; then
    find "$packages/nvidia" \
        \( -name 'libcusolverMg.so*' -o -name 'libnvrtc.alt.so*' -o -name 'libnvrtc-builtins.alt.so*' \) -delete
    status=0
    grep --recursive --only-matching --text --fixed-strings --include='*.so*' \
        --regexp=libcusolverMg.so --regexp=libnvrtc.alt.so --regexp=libnvrtc-builtins.alt.so "$packages" || status=$?
    if [ "$status" -ne 1 ]; then # 0: found; 2: not all could be read
        echo "install: a library above is unreadable, or requires a library that the image omits" >&2
        exit 1
    fi
fi
