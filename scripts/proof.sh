#!/usr/bin/env bash
# Signs the proof of a run, and keeps it beside the model in a registry: docs/guides/archive.md shows how.
#   scripts/proof.sh sign PROOF [FILE…]        verifies proof.json and signs it; prints the signed proof's name
#   scripts/proof.sh verify SIGNED [FILE…]     verifies the signature and the proof, which must be of the files
#   scripts/proof.sh push REF SIGNED FILE…     pushes the files to a registry as REF, such as ghcr.io/me/model:1, and the
#                                              signed proof beside them; prints NAME@sha256:…
#   scripts/proof.sh pull REF FOLDER           copies both to a folder
# A FILE is a file that the proof is of, such as model.pt; or, except in push, a checkpoint that is a folder.
# Exit status: 0; of sign and verify also 1: the signature is not valid, or the proof is disproved or of other files;
# 3: the proof is incomplete. 2: a mistake.
# Environment variables:
#   COSIGN_KEY, COSIGN_PUB           files of a key pair, with the password in COSIGN_PASSWORD
#   COSIGN_IDENTITY                  without keys: identity of the signer, issued by COSIGN_ISSUER (default: GitHub
#                                    Actions) and recorded in a public transparency log
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PATH="${TOOLS_DIR:-$root/.tools/bin}:$PATH"
PREDICATE=https://github.com/torchtally/torchtally/blob/main/docs/reference/statement-v1.md
BUNDLE=application/vnd.dev.sigstore.bundle.v0.3+json # media type of what cosign writes

fail() {
    echo "proof: $*" >&2
    exit 2
}

# Of a file of the user's.
readable() {
    [ -f "$1" ] && [ -r "$1" ] || fail "cannot read $1: it is no file"
}

# verified PROOF [FILE…]: what the verifier says of a proof, with its exit status.
verified() {
    local proof=$1 file
    local -a models=()
    shift
    for file in "$@"; do models+=(--model "$file"); done
    "${PYTHON:-python3}" "$root/scripts/verify_shards.py" "${models[@]}" -- "$proof"
}

sign() {
    [ $# -ge 1 ] || fail "sign needs the name of a proof.json"
    readable "$1"
    local signed=${1%.json}.sigstore.json
    local -a signer
    "$root/tools/install.py" cosign
    if [ -n "${COSIGN_KEY:-}" ]; then
        signer=(--key "$COSIGN_KEY" --use-signing-config=false --tlog-upload=false) # a key needs no transparency log
    elif [ -n "${COSIGN_IDENTITY:-}" ]; then
        signer=()
    else
        fail "COSIGN_KEY is not set; set it to the file of the private key (cosign generate-key-pair), or set COSIGN_IDENTITY"
    fi
    verified "$@" >&2 || exit $?
    cosign attest-blob --yes "${signer[@]}" --statement "$1" --bundle "$signed" >"$folder/said" 2>&1 ||
        fail "cosign cannot sign $1: $(tail -1 "$folder/said")"
    echo "$signed"
}

# Of a signed proof only the parts that cosign verifies, and the proof that is in them. In another format, cosign would
# look for a signature elsewhere.
UNPACK='
import base64, json, pathlib, sys

def once(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object has a field twice")
    return dict(pairs)

signed, folder = map(pathlib.Path, sys.argv[1:])
try:
    bundle = json.loads(signed.read_bytes(), object_pairs_hook=once)
    parts = {name: bundle[name] for name in ("mediaType", "verificationMaterial", "dsseEnvelope")}
    proof = base64.b64decode(parts["dsseEnvelope"]["payload"], validate=True)
except (ValueError, LookupError, TypeError, RecursionError) as error:
    sys.exit(f"proof: {signed} is no signed proof, as cosign writes it: {error!r}")
(folder / "bundle.json").write_text(json.dumps(parts))
(folder / "proof.json").write_bytes(proof)
'

verify() {
    [ $# -ge 1 ] || fail "verify needs the name of a signed proof"
    readable "$1"
    local signed=$1
    local -a of
    shift
    "$root/tools/install.py" cosign
    if [ -n "${COSIGN_PUB:-}" ]; then
        of=(--key "$COSIGN_PUB" --insecure-ignore-tlog=true)
    elif [ -n "${COSIGN_IDENTITY:-}" ]; then
        of=(--certificate-identity "$COSIGN_IDENTITY")
        of+=(--certificate-oidc-issuer "${COSIGN_ISSUER:-https://token.actions.githubusercontent.com}")
    else
        fail "COSIGN_PUB is not set; set it to the file of the public key (cosign.pub), or set COSIGN_IDENTITY"
    fi
    "${PYTHON:-python3}" -c "$UNPACK" "$signed" "$folder" || exit 2
    # The verifier compares the files, which can be larger than cosign takes.
    if ! cosign verify-blob-attestation "${of[@]}" --check-claims=false --type "$PREDICATE" --bundle "$folder/bundle.json" \
        >"$folder/said" 2>&1; then
        echo "proof: $signed is not signed by ${COSIGN_PUB:-$COSIGN_IDENTITY}: $(tail -1 "$folder/said")" >&2
        exit 1
    fi
    verified "$folder/proof.json" "$@"
}

# Sets `plain` to the options for a registry of this machine.
choose_scheme() {
    plain=()
    case $1 in localhost:* | 127.0.0.1:*) plain+=(--plain-http) ;; esac
}

push() {
    [ $# -ge 3 ] || fail "push needs REF, the name of a signed proof, and at least one file that it is of"
    local ref=$1 signed=$2 file pushed
    local -a plain names=()
    shift 2
    "$root/tools/install.py" oras
    readable "$signed"
    mkdir "$folder/files"
    for file in "$@"; do
        readable "$file"
        [ ! -e "$folder/files/$(basename "$file")" ] || fail "two files have the name $(basename "$file")"
        ln -s "$(realpath "$file")" "$folder/files/"
        names+=("$(basename "$file"):application/octet-stream")
    done
    ln -s "$(realpath "$signed")" "$folder/proof.sigstore.json"
    choose_scheme "$ref"
    pushed=$(cd "$folder/files" && oras push "${plain[@]}" --artifact-type application/vnd.torchtally.model \
        --format go-template='{{.reference}}' "$ref" "${names[@]}") || fail "cannot push the files to $ref"
    (cd "$folder" && oras attach "${plain[@]}" --artifact-type "$BUNDLE" --format go-template='{{.reference}}' "$pushed" \
        "proof.sigstore.json:$BUNDLE") >&2 || fail "cannot push the proof to $ref"
    echo "$pushed"
}

pull() {
    [ $# -eq 2 ] || fail "pull needs REF and a folder"
    local ref=$1 found
    local -a plain
    "$root/tools/install.py" oras
    choose_scheme "$ref"
    found=$(oras discover "${plain[@]}" --depth 1 --artifact-type "$BUNDLE" \
        --format go-template='{{range .referrers}}{{println .reference}}{{end}}' "$ref") || fail "cannot read $ref"
    [ "$(grep -c . <<<"$found")" = 1 ] || fail "$ref must have one signed proof, and has $(grep -c . <<<"$found")"
    oras pull "${plain[@]}" --output "$2" "$ref" >&2 || fail "cannot copy the files of $ref"
    oras pull "${plain[@]}" --output "$2" "$found" >&2 || fail "cannot copy the proof of $ref"
    echo "$2/proof.sigstore.json"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case ${1:-} in
sign | verify | push | pull) "$@" ;;
*) fail "the first argument is '${1:-}'; it must be sign, verify, push or pull" ;;
esac
