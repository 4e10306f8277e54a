#!/usr/bin/env bash
# Builds or pushes the image. `push` and `release` print the digest of the pushed image as NAME@sha256:…
#   docker/image.sh build    builds torchtally:$DEVICE; with extras, torchtally:$DEVICE-keras-mlflow
#   docker/image.sh again    rebuilds it without the cache, and fails with 1 if the two images differ
#   docker/image.sh push     pushes it as $REGISTRY/torchtally:<version>-<tag>
#   docker/image.sh release  builds and pushes it under the same name for all platforms, on the pinned base image, with
#                            its provenance
# Environment variables:
#   DEVICE      cpu (default) or cuda
#   EXTRAS      optional packages, separated by commas: compile (a compiler for torch.compile), keras, mlflow,
#               parquet, s3, spark, tensorboard, wandb, webdataset
#   REGISTRY    registry to push to, such as ghcr.io/me
#   INDEX_URL   package indexes, separated by spaces, in order of preference; pip uses no others
#   WHEELS      folder of wheels to install first, without hashes
#   CA          CA bundle for TLS during the build
#   BASE        base image
#   PYTHON      apt package of Python in the base image
#   PLATFORMS   platforms of a release: linux/amd64,linux/arm64 (default), or one of them
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "image: $*" >&2
    exit 2
}

device=${DEVICE:-cpu}
case $device in cpu | cuda) ;; *) fail "DEVICE is '$device'; it must be cpu or cuda" ;; esac
read -ra extras <<<"$(tr ',' '\n' <<<"${EXTRAS:-}" | sort -u | xargs)"
for extra in "${extras[@]}"; do
    case $extra in
    compile | keras | mlflow | parquet | s3 | spark | tensorboard | wandb | webdataset) ;;
    *) fail "EXTRAS is '$EXTRAS'; allowed extras are compile, keras, mlflow, parquet, s3, spark, tensorboard, wandb and webdataset" ;;
    esac
done
tag=$(IFS=- && echo "${extras[*]:+-${extras[*]}}")
tag=$device$tag
version=$(sed -n '/^version = /{s/.*"\(.*\)"/\1/p;q}' trainer/pyproject.toml)

# bake TARGET REFERENCE [OPTION…]: builds a target of docker/docker-bake.hcl with that image reference.
bake() {
    local target=$1 reference=$2
    local -a options=("${@:3}")
    if [ -n "${WHEELS:-}" ]; then
        compgen -G "$WHEELS/*.whl" >/dev/null || fail "WHEELS is '$WHEELS', which contains no wheel"
        options+=(--allow "fs.read=$WHEELS")
    fi
    if [ -n "${CA:-}" ]; then
        [ -r "$CA" ] || fail "CA is '$CA', which is not a readable file"
        options+=(--allow "fs.read=$CA")
    fi
    # As a build argument, SOURCE_DATE_EPOCH also sets the image's time, so that equal commits make equal images.
    EXTRAS=${extras[*]} REFERENCE=$reference VERSION=$version \
        CREATED=$(git log -1 --format=%cI) \
        REVISION=$(git describe --always --dirty --abbrev=40 --exclude '*') \
        SOURCE_DATE_EPOCH=$(sed -n 's/^ARG SOURCE_DATE_EPOCH=//p' docker/Dockerfile) \
        docker buildx bake --file docker/docker-bake.hcl "${options[@]}" "$target"
}

again() {
    bake "$device" "torchtally:$tag-again" --load --no-cache
    local first second
    first=$(docker image inspect --format '{{.Id}} {{.RootFS.Layers}}' "torchtally:$tag")
    second=$(docker image inspect --format '{{.Id}} {{.RootFS.Layers}}' "torchtally:$tag-again")
    docker image rm "torchtally:$tag-again" >/dev/null
    [ "$first" = "$second" ] || { printf 'image: the two builds differ:\n%s\n%s\n' "$first" "$second" >&2 && exit 1; }
    echo "image: both builds are ${first%% *}"
}

# The image's reference in the registry.
pushed_as() {
    [ -n "${REGISTRY:-}" ] || fail "REGISTRY is not set; set it to the registry to push to, such as ghcr.io/me"
    echo "${REGISTRY%/}/torchtally:$version-$tag"
}

push() {
    local reference
    reference=$(pushed_as)
    docker tag "torchtally:$tag" "$reference"
    docker push "$reference" >&2
    docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$reference" | grep -F "${reference%:*}@"
}

release() {
    local reference metadata
    reference=$(pushed_as)
    metadata=$(mktemp)
    bake "release-$device" "$reference" --metadata-file "$metadata" >&2
    echo "${reference%:*}@$(sed -n 's/.*"containerimage.digest": "\(.*\)".*/\1/p' "$metadata")"
    rm "$metadata"
}

case ${1:-} in
build) bake "$device" "torchtally:$tag" --load ;;
again | push | release) "$1" ;;
*) fail "the first argument is '${1:-}'; it must be build, again, push or release" ;;
esac
