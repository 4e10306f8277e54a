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

# Nor is cuSOLVER for several GPUs, or the second one of two NVRTCs: no shared library names them, to be linked with them
# or to open them. If a later one does, it would fail at run time, so the build fails here.
packages=$(echo "${VIRTUAL_ENV}"/lib/python3*/site-packages)
if [ -d "$packages/nvidia" ]; then
    find "$packages/nvidia" \
        \( -name 'libcusolverMg.so*' -o -name 'libnvrtc.alt.so*' -o -name 'libnvrtc-builtins.alt.so*' \) -delete
    status=0
    grep --recursive --only-matching --text --fixed-strings --include='*.so*' \
        --regexp=libcusolverMg.so --regexp=libnvrtc.alt.so --regexp=libnvrtc-builtins.alt.so "$packages" || status=$?
    if [ "$status" -ne 1 ]; then # 0: found; 2: not all could be read
        echo "install: a library above needs one that is left out of the image, or cannot be read" >&2
        exit 1
    fi
fi
