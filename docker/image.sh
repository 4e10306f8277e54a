#!/usr/bin/env bash
# Builds or pushes the image; the last two print what they pushed by its digest, NAME@sha256:…
#   docker/image.sh build   as torchtally:$DEVICE, with extras as torchtally:$DEVICE-keras-mlflow
#   docker/image.sh again   without anything that was kept of that build; 1 where another image comes of it
#   docker/image.sh push    as $REGISTRY/torchtally:<version>-<the same>
#   docker/image.sh release builds and pushes it as that, for all platforms, on the pinned base, with its provenance
# They take what they need from the environment:
#   DEVICE      cpu (default) or cuda
#   EXTRAS      what only some need, separated by commas: compile (what torch.compile calls), keras, mlflow, spark
#   REGISTRY    where to push, e.g. ghcr.io/me
#   INDEX_URL   package indexes, the preferred one first, separated by spaces; no other is asked
#   WHEELS      folder of wheels that are installed first, without a hash
#   CA          CA bundle for TLS while building
#   BASE        base image, PYTHON the name of its Python's apt package
#   PLATFORMS   of a release: linux/amd64,linux/arm64 (default), or one of them
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "image: $*" >&2
    exit 2
}

device=${DEVICE:-cpu}
case $device in cpu | cuda) ;; *) fail "DEVICE is '$device'; it can be cpu or cuda" ;; esac
read -ra extras <<<"$(tr ',' '\n' <<<"${EXTRAS:-}" | sort -u | xargs)"
for extra in "${extras[@]}"; do
    case $extra in
    compile | keras | mlflow | spark) ;;
    *) fail "EXTRAS is '$EXTRAS'; it can be of compile, keras, mlflow, spark" ;;
    esac
done
tag=$(IFS=- && echo "${extras[*]:+-${extras[*]}}")
tag=$device$tag
version=$(sed -n 's/^version = "\(.*\)"/\1/p' trainer/pyproject.toml)

# docker/docker-bake.hcl's target, as that reference; then options of `docker buildx bake`.
bake() {
    local target=$1 reference=$2
    local -a options=("${@:3}")
    if [ -n "${WHEELS:-}" ]; then
        compgen -G "$WHEELS/*.whl" >/dev/null || fail "WHEELS is '$WHEELS', where there is no wheel"
        options+=(--allow "fs.read=$WHEELS")
    fi
    if [ -n "${CA:-}" ]; then
        [ -r "$CA" ] || fail "CA is '$CA', which cannot be read"
        options+=(--allow "fs.read=$CA")
    fi
    # Given as an argument it is the image's own time, too: the same commit makes the same image.
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
    [ "$first" = "$second" ] || { printf 'image: two builds differ:\n%s\n%s\n' "$first" "$second" >&2 && exit 1; }
    echo "image: built twice, ${first%% *}"
}

# Where that image belongs.
pushed_as() {
    [ -n "${REGISTRY:-}" ] || fail "REGISTRY is not set; say where to push, e.g. REGISTRY=ghcr.io/me"
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
*) fail "the first argument is '${1:-}'; it can be build, again, push or release" ;;
esac
