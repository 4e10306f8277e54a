#!/usr/bin/env bash
# Exports trainer/uv.lock as hashed requirements of the image: one file per device, and one with the additional packages
# of each extra. Also locks the build tools. Triton has a separate file, because it needs a compiler at run time.
#   tools/lock.sh           writes the files
#   tools/lock.sh --check   fails if the exported files are stale
set -euo pipefail
cd "$(dirname "$0")/../docker"
uv=${UV:-uv}

for package in torch torchvision; do
    version=$(sed -n "/^name = \"$package\"\$/{n;s/version = \"\(.*\)\"/\1/p;q}" ../trainer/uv.lock)
    copy="copy the SHA-256 of $package-$version+cpu-*.whl from https://download.pytorch.org/whl/cpu/$package/"
    if grep -F "  $package-" torch-cpu.sha256 | grep -qvF "  $package-$version+cpu-"; then
        echo "docker/torch-cpu.sha256 doesn't match $package $version in trainer/uv.lock: $copy" >&2
        exit 1
    elif ! grep -qF "  $package-" torch-cpu.sha256; then
        echo "lock: warning: docker/torch-cpu.sha256 has no $package, so the CPU image gets that of PyPI, whose" \
            "operators need CUDA's libraries: $copy" >&2
    fi
done

extras=(keras mlflow parquet s3 spark tensorboard wandb webdataset)

export_lock() {
    "$uv" export --project ../trainer --frozen --no-dev --no-emit-project --extra train --extra vision "$@" \
        --no-annotate --no-header --format requirements-txt
}

# subtract FILE: filters the packages in FILE out of the requirements on stdin.
subtract() {
    awk '
        /^[^ ]/ { package = $0; sub(/==.*/, "", package); known = package in others }
        FNR == NR { others[package]; next }
        !known { print }
    ' "$1" -
}

# Filters out the CUDA packages, and adds the hashes of torch and torchvision on PyTorch's CPU index to those on PyPI.
for_cpu() {
    awk '
        FILENAME == "torch-cpu.sha256" { sub(/-.*/, "", $2); hashes[$2] = hashes[$2] " \\\n    --hash=sha256:" $1; next }
        /^[^ ]/ { dropped = /^(cuda|nvidia)[-=]/ }
        dropped { next }
        /^torch(vision)?==/ { package = $1; sub(/==.*/, "", package); sub(/ \\$/, hashes[package] "&") }
        { print }
    ' torch-cpu.sha256 -
}

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
all=$scratch/all out=.
if [ "${1:-}" = --check ]; then
    out=$scratch
fi
export_lock >"$all"
awk '/^[^ ]/ { triton = /^triton=/ } triton' "$all" >"$out/requirements-triton.txt"
[ -s "$out/requirements-triton.txt" ] || { echo "trainer/uv.lock doesn't contain triton, which EXTRAS=compile installs" >&2; exit 1; }
subtract "$out/requirements-triton.txt" <"$all" >"$out/requirements-cuda.txt"
for_cpu <"$out/requirements-cuda.txt" >"$out/requirements-cpu.txt"
for extra in "${extras[@]}"; do
    export_lock --extra "$extra" | subtract "$all" >"$out/requirements-$extra.txt"
done
if [ "$out" = . ]; then
    printf '%s\n' hatchling setuptools | "$uv" pip compile --universal --python-version 3.11 --generate-hashes \
        --no-annotate --no-header --quiet --output-file requirements-build.txt -
else
    for each in cuda cpu triton "${extras[@]}"; do
        diff -u "requirements-$each.txt" "$out/requirements-$each.txt" ||
            { echo "docker/requirements-$each.txt is stale: run tools/lock.sh" >&2; exit 1; }
    done
fi
