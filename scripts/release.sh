#!/usr/bin/env bash
# What a release does with what was pushed (docker/image.sh release pushes an image). Every command prints what it was
# about by its digest, NAME@sha256:…
#   scripts/release.sh chart         package the chart and push it, as oci://$REGISTRY/charts/torchtally
#   scripts/release.sh sign REF      sign an image or a chart
#   scripts/release.sh sbom REF      list what is in an image, for each of its platforms, and sign that (SPDX, by syft)
#   scripts/release.sh verify REF    check the signature of an image or a chart
# REGISTRY is where to push, e.g. ghcr.io/me. Who signs is either
#   COSIGN_KEY and COSIGN_PUB        the files of a pair of keys, the password in COSIGN_PASSWORD; or
#   COSIGN_IDENTITY                  no key: who runs this, as COSIGN_ISSUER (default: GitHub Actions) attests and a
#                                    public log shows
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="${TOOLS_DIR:-$PWD/.tools/bin}:$PATH"

fail() {
    echo "release: $*" >&2
    exit 2
}

# A signature is of what is there, which a tag does not say.
by_digest() {
    [[ ${1:-} =~ ^[^@]+@sha256:[0-9a-f]{64}$ ]] || fail "'${1:-}' is no NAME@sha256:… of an image or a chart"
}

chart() {
    [ -n "${REGISTRY:-}" ] || fail "REGISTRY is not set; say where to push, e.g. REGISTRY=ghcr.io/me"
    local -a options=()
    case $REGISTRY in localhost:* | 127.0.0.1:*) options+=(--plain-http) ;; esac
    local said
    scripts/tools.py helm
    helm package charts/torchtally --destination "$folder" >&2
    said=$(helm push "${options[@]}" "$folder"/*.tgz "oci://${REGISTRY%/}/charts" 2>&1) || fail "$said"
    echo "$said" >&2
    echo "${REGISTRY%/}/charts/torchtally@$(grep -o 'sha256:[0-9a-f]*' <<<"$said")"
}

# Sets `signer`, cosign's options to sign.
choose_signer() {
    scripts/tools.py cosign
    if [ -n "${COSIGN_KEY:-}" ]; then
        # A key of one's own needs no log; and with one, admission controllers do not know the newer format.
        signer=(--key "$COSIGN_KEY" --use-signing-config=false --tlog-upload=false --new-bundle-format=false)
    elif [ -n "${COSIGN_IDENTITY:-}" ]; then
        signer=()
    else
        fail "COSIGN_KEY is not set; name the file of the key: cosign generate-key-pair makes one (or COSIGN_IDENTITY)"
    fi
}

sign() {
    by_digest "${1:-}"
    choose_signer
    cosign sign --yes "${signer[@]}" "$1" >&2
    echo "$1"
}

# An index lists the image of each platform, and beside it, of the platform `unknown`, how it was built.
PLATFORMS='
import json, sys
for image in json.load(sys.stdin).get("manifests", ()):
    if image["platform"]["os"] != "unknown":
        print(image["digest"])
'

sbom() {
    by_digest "${1:-}"
    choose_signer
    scripts/tools.py syft
    local image platforms
    platforms=$(docker buildx imagetools inspect --raw "$1" | "${PYTHON:-python3}" -c "$PLATFORMS")
    for image in ${platforms:-"${1#*@}"}; do
        syft scan --quiet "registry:${1%@*}@$image" --output "spdx-json=$folder/sbom.json"
        cosign attest --yes "${signer[@]}" --type spdxjson --predicate "$folder/sbom.json" "${1%@*}@$image" >&2
        echo "${1%@*}@$image"
    done
}

verify() {
    by_digest "${1:-}"
    local -a of
    scripts/tools.py cosign
    if [ -n "${COSIGN_PUB:-}" ]; then
        of=(--key "$COSIGN_PUB" --insecure-ignore-tlog=true --new-bundle-format=false)
    elif [ -n "${COSIGN_IDENTITY:-}" ]; then
        of=(--certificate-identity "$COSIGN_IDENTITY")
        of+=(--certificate-oidc-issuer "${COSIGN_ISSUER:-https://token.actions.githubusercontent.com}")
    else
        fail "COSIGN_PUB is not set; name the file of the public key, cosign.pub (or COSIGN_IDENTITY)"
    fi
    cosign verify "${of[@]}" "$1" >/dev/null
    echo "$1"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case ${1:-} in
chart | sign | sbom | verify) "$@" ;;
*) fail "the first argument is '${1:-}'; it can be chart, sign, sbom or verify" ;;
esac
