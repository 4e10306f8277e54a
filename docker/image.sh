#!/usr/bin/env bash
# Builds or pushes the image:
#   docker/image.sh build   as torchtally:$DEVICE
#   docker/image.sh push    as $REGISTRY/torchtally:<version>-$DEVICE
# Both take what they need from the environment:
#   DEVICE      cpu (default) or cuda
#   REGISTRY    where to push, e.g. ghcr.io/me
#   INDEX_URL   package indexes, the preferred one first, separated by spaces; no other is asked
#   WHEELS      folder of wheels that are installed first, without a hash
#   CA          CA bundle for TLS while building
#   BASE        base image, PYTHON the name of its Python's apt package
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "image: $*" >&2
    exit 2
}

device=${DEVICE:-cpu}
case $device in cpu | cuda) ;; *) fail "DEVICE is '$device'; it can be cpu or cuda" ;; esac
version=$(sed -n 's/^version = "\(.*\)"/\1/p' trainer/pyproject.toml)

build() {
    local -a options=()
    local argument
    for argument in BASE INDEX_URL PYTHON; do
        [ -z "${!argument:-}" ] || options+=(--build-arg "$argument=${!argument}")
    done
    if [ -n "${WHEELS:-}" ]; then
        compgen -G "$WHEELS/*.whl" >/dev/null || fail "WHEELS is '$WHEELS', where there is no wheel"
        options+=(--build-context "wheels=$WHEELS")
    fi
    if [ -n "${CA:-}" ]; then
        [ -r "$CA" ] || fail "CA is '$CA', which cannot be read"
        options+=(--secret "id=ca,src=$CA")
    fi
    docker buildx build --load --file docker/Dockerfile --target "$device" --tag "torchtally:$device" \
        --label "org.opencontainers.image.version=$version" \
        --label "org.opencontainers.image.revision=$(git describe --always --dirty --abbrev=40 --exclude '*')" \
        --label "org.opencontainers.image.created=$(git log -1 --format=%cI)" \
        "${options[@]}" .
}

push() {
    [ -n "${REGISTRY:-}" ] || fail "REGISTRY is not set; say where to push, e.g. REGISTRY=ghcr.io/me"
    local name="${REGISTRY%/}/torchtally"
    local reference="$name:$version-$device"
    docker tag "torchtally:$device" "$reference"
    docker push "$reference" >&2
    docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$reference" | grep -F "$name@"
}

case ${1:-} in
build) build ;;
push) push ;;
*) fail "the first argument is '${1:-}'; it can be build or push" ;;
esac
