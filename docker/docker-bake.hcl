# How the image is built, for this machine (cpu, cuda) and for a release (release-cpu, release-cuda).
# docker/image.sh says what each variable is, and fills those that it does not name.

variable "BASE" { default = "" }
variable "CA" { default = "" }
variable "CREATED" { default = "" }
variable "EXTRAS" { default = "" }
variable "INDEX_URL" { default = "" }
variable "PLATFORMS" { default = "linux/amd64,linux/arm64" }
variable "PYTHON" { default = "" }
variable "REFERENCE" { default = "" }
variable "REVISION" { default = "" }
variable "SOURCE_DATE_EPOCH" { default = "" }
variable "VERSION" { default = "" }
variable "WHEELS" { default = "" }

# An argument that is null is the Dockerfile's own.
function "given" {
  params = [value]
  result = value != "" ? value : null
}

target "image" {
  dockerfile = "docker/Dockerfile"
  args = {
    BASE              = given(BASE)
    EXTRAS            = given(EXTRAS)
    INDEX_URL         = given(INDEX_URL)
    PYTHON            = given(PYTHON)
    SOURCE_DATE_EPOCH = given(SOURCE_DATE_EPOCH)
  }
  contexts = WHEELS != "" ? { wheels = WHEELS } : {}
  secret   = CA != "" ? ["id=ca,src=${CA}"] : []
  labels = {
    "org.opencontainers.image.created"  = CREATED
    "org.opencontainers.image.revision" = REVISION
    "org.opencontainers.image.version"  = VERSION
  }
  tags = [REFERENCE]
}

target "cpu" {
  inherits = ["image"]
  target   = "cpu"
}

target "cuda" {
  inherits = ["image"]
  target   = "cuda"
}

# Needs a builder that can hold attestations: `docker buildx create --use` makes one.
target "release" {
  matrix   = { device = ["cpu", "cuda"] }
  name     = "release-${device}"
  inherits = [device]
  args = {
    # debian:trixie-slim as of 2026-10; `docker buildx imagetools inspect debian:trixie-slim` tells today's.
    BASE = BASE != "" ? BASE : "debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f"
  }
  platforms = split(",", PLATFORMS)
  attest    = ["type=provenance,mode=max"]
  output    = ["type=registry,oci-mediatypes=true,compression=zstd,force-compression=true"]
}
