#!/usr/bin/env bash
# Exports trainer/uv.lock as hashed requirements of the image: one file per device, and one with the additional packages
# of each extra. Also locks the build tools. Triton has a separate file, because it needs a compiler at run time.
#   docker/lock.sh           writes the files
#   docker/lock.sh --check   fails if the exported files are stale
set -euo pipefail
cd "$(dirname "$0")"
uv=${UV:-uv}

version=$(sed -n '/^name = "torch"$/{n;s/version = "\(.*\)"/\1/p;q}' ../trainer/uv.lock)
if grep -qvF "  torch-$version+cpu-" torch-cpu.sha256; then
    echo "docker/torch-cpu.sha256 doesn't match torch $version in trainer/uv.lock: copy the SHA-256 of" \
        "torch-$version+cpu-*.whl from https://download.pytorch.org/whl/cpu/torch/" >&2
    exit 1
fi

extras=(keras mlflow parquet s3 spark webdataset)

export_lock() {
    "$uv" export --project ../trainer --frozen --no-dev --no-emit-project --group scripts "$@" \
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

# Filters out the CUDA packages, and adds torch's hashes on PyTorch's CPU index to those on PyPI.
for_cpu() {
    awk '
        FILENAME == "torch-cpu.sha256" { hashes = hashes " \\\n    --hash=sha256:" $1; next }
        /^[^ ]/ { dropped = /^(cuda|nvidia)[-=]/ }
        dropped { next }
        /^torch==/ { sub(/ \\$/, hashes "&") }
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
            { echo "docker/requirements-$each.txt is stale: run docker/lock.sh" >&2; exit 1; }
    done
fi
