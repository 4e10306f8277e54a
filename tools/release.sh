#!/usr/bin/env bash
# Publishes the artifacts of a release, after docker/image.sh release has pushed the image. Each command prints the
# digest of its artifact as NAME@sha256:…
#   tools/release.sh chart         packages the chart and pushes it to oci://$REGISTRY/charts/torchtally
#   tools/release.sh sign REF      signs an image or a chart
#   tools/release.sh sbom REF      attests a signed SBOM (SPDX, by syft) for each platform of an image
#   tools/release.sh verify REF    verifies the signature of an image or a chart
# Environment variables:
#   REGISTRY                         registry to push to, such as ghcr.io/me
#   COSIGN_KEY, COSIGN_PUB           files of a key pair, with the password in COSIGN_PASSWORD
#   COSIGN_IDENTITY                  without keys: identity of the signer, issued by COSIGN_ISSUER (default: GitHub
#                                    Actions) and recorded in a public transparency log
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="${TOOLS_DIR:-$PWD/.tools/bin}:$PATH"

fail() {
    echo "release: $*" >&2
    exit 2
}

# Signatures refer to content. A tag can move to other content.
by_digest() {
    [[ ${1:-} =~ ^[^@]+@sha256:[0-9a-f]{64}$ ]] || fail "'${1:-}' is not an image or a chart of the form NAME@sha256:…"
}

chart() {
    [ -n "${REGISTRY:-}" ] || fail "REGISTRY is not set; set it to the registry to push to, such as ghcr.io/me"
    local -a options=()
    case $REGISTRY in localhost:* | 127.0.0.1:*) options+=(--plain-http) ;; esac
    local output
    tools/install.py helm
    helm package charts/torchtally --destination "$folder" >&2
    output=$(helm push "${options[@]}" "$folder"/*.tgz "oci://${REGISTRY%/}/charts" 2>&1) || fail "$output"
    echo "$output" >&2
    echo "${REGISTRY%/}/charts/torchtally@$(grep -o 'sha256:[0-9a-f]*' <<<"$output")"
}

# Sets `signer` to cosign's options for signing.
choose_signer() {
    tools/install.py cosign
    if [ -n "${COSIGN_KEY:-}" ]; then
        # Your own key needs no transparency log, and admission controllers don't support the new format with keys.
        signer=(--key "$COSIGN_KEY" --use-signing-config=false --tlog-upload=false --new-bundle-format=false)
    elif [ -n "${COSIGN_IDENTITY:-}" ]; then
        signer=()
    else
        fail "COSIGN_KEY is not set; set it to the file of the private key (cosign generate-key-pair), or set COSIGN_IDENTITY"
    fi
}

sign() {
    by_digest "${1:-}"
    choose_signer
    cosign sign --yes "${signer[@]}" "$1" >&2
    echo "$1"
}

# An index lists the image of each platform, and provenance attestations with the platform `unknown`.
PLATFORMS='
import json, sys
for image in json.load(sys.stdin).get("manifests", ()):
    if image["platform"]["os"] != "unknown":
        print(image["digest"])
'

sbom() {
    by_digest "${1:-}"
    choose_signer
    tools/install.py syft
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
    tools/install.py cosign
    if [ -n "${COSIGN_PUB:-}" ]; then
        of=(--key "$COSIGN_PUB" --insecure-ignore-tlog=true --new-bundle-format=false)
    elif [ -n "${COSIGN_IDENTITY:-}" ]; then
        of=(--certificate-identity "$COSIGN_IDENTITY")
        of+=(--certificate-oidc-issuer "${COSIGN_ISSUER:-https://token.actions.githubusercontent.com}")
    else
        fail "COSIGN_PUB is not set; set it to the file of the public key (cosign.pub), or set COSIGN_IDENTITY"
    fi
    cosign verify "${of[@]}" "$1" >/dev/null
    echo "$1"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case ${1:-} in
chart | sign | sbom | verify) "$@" ;;
*) fail "the first argument is '${1:-}'; it must be chart, sign, sbom or verify" ;;
esac
