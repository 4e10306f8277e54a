# Builds of the image: for this machine (cpu, cuda) and for a release (release-cpu, release-cuda).
# docker/image.sh documents the variables that users set, and sets the others.

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

# A null argument keeps the Dockerfile's default.
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

# Requires a builder that supports attestations. To create one, run `docker buildx create --use`.
target "release" {
  matrix   = { device = ["cpu", "cuda"] }
  name     = "release-${device}"
  inherits = [device]
  args = {
    # debian:trixie-slim as of 2026-10. For the current digest: `docker buildx imagetools inspect debian:trixie-slim`.
    BASE = BASE != "" ? BASE : "debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f"
  }
  platforms = split(",", PLATFORMS)
  attest    = ["type=provenance,mode=max"]
  output    = ["type=registry,oci-mediatypes=true,compression=zstd,force-compression=true"]
}
