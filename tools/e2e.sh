#!/usr/bin/env bash
# Runs the end-to-end tests: creates a kind cluster and a registry, pushes torchtally:cpu to it, runs tests/e2e and
# deletes the cluster and the registry. Passes its arguments to pytest (-m '': all faults). After --, the arguments are
# a command to run on the cluster instead of the tests (make bench-cluster). Optional environment variables:
#   E2E_KEEP        1: keep the cluster, and reuse a kept one
#   E2E_NODE_IMAGE  kind's node image
#   E2E_CONTEXT     context of your kubeconfig, with the training operator installed: the tests use this cluster, in
#                   their own namespaces, and leave it unchanged; with the following variables
#   E2E_IMAGE       required: an image that the cluster can pull
#   E2E_TASKS       1: include the tasks that need torchtally:cpu-keras-mlflow-spark (with E2E_CONTEXT:
#                   E2E_TASKS_IMAGE)
#   E2E_DATA        folder on each node with the data in fashion-mnist/, image-folder/ and mnist/; by default, the pods
#                   download it
#   E2E_MANIFESTS   folder with jobset.yaml, trainer.yaml, trainer-runtimes.yaml and kueue.yaml, for use without
#                   access to GitHub; the tests of a gang scheduler are skipped without volcano.yaml or
#                   scheduler-plugins.yaml, those of Prometheus and Argo CD without prometheus-operator.yaml and
#                   argo-cd.yaml
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=torchtally-e2e
registry=torchtally-e2e-registry
node_image=${E2E_NODE_IMAGE:-kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d}
users=${KUBECONFIG:-$HOME/.kube/config}
export KUBECONFIG=$PWD/build/e2e/kubeconfig

log() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
fail() {
    echo "e2e: $*" >&2
    exit 2
}

use_context() {
    [ -n "${E2E_IMAGE:-}" ] || fail "E2E_CONTEXT is set but E2E_IMAGE is not; set it to an image that the nodes of '$E2E_CONTEXT' can pull"
    (umask 077 && KUBECONFIG=$users kubectl config view --minify --flatten --context="$E2E_CONTEXT" >"$KUBECONFIG") 2>/dev/null ||
        fail "E2E_CONTEXT is '$E2E_CONTEXT', which is not a context in your kubeconfig"
}

delete_cluster() {
    kind delete cluster --quiet --name "$cluster" || true
    docker rm --force --volumes "$registry" >/dev/null 2>&1 || true
}

# Downloads the data into the trainer's cache.
data_folder() {
    python - <<'PYTHON'
import os

from torchtally.datasets import idx
from torchtally.environment import Places
from torchtally.tasks.image_folder import folder

places = Places.from_env(os.environ)
for dataset in (idx.FASHION_MNIST, idx.MNIST):
    idx.load(dataset, None, places.cache)
folder.demo(places.cache)
print(places.cache.absolute())
PYTHON
}

create_cluster() {
    local folder node shared=$PWD/build/e2e/shared
    folder=$(data_folder)
    mkdir -p "$shared"
    log "creating the kind cluster $cluster"
    docker run --detach --restart=always --publish 127.0.0.1::5000 --name "$registry" registry:2 >/dev/null
    # Not --quiet, which also hides errors.
    kind create cluster --name "$cluster" --image "$node_image" --wait 5m --config - >build/e2e/kind.log 2>&1 <<YAML ||
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
featureGates: {MutatingAdmissionPolicy: true}
runtimeConfig: {admissionregistration.k8s.io/v1beta1: "true"}
nodes:
  - role: control-plane
  - role: worker
    extraMounts: &mounts
      - {hostPath: "$folder/fashion-mnist", containerPath: /e2e/data/fashion-mnist, readOnly: true}
      - {hostPath: "$folder/image-folder", containerPath: /e2e/data/image-folder, readOnly: true}
      - {hostPath: "$folder/mnist", containerPath: /e2e/data/mnist, readOnly: true}
      - {hostPath: "$shared", containerPath: /e2e/shared}
  - {role: worker, extraMounts: *mounts}
YAML
        { cat build/e2e/kind.log >&2; fail "kind failed to create the cluster"; }
    # As in kind's guide: maps the registry's address on this machine to its address in kind's network.
    docker network connect kind "$registry"
    for node in $(kind get nodes --name "$cluster"); do
        docker exec -i "$node" sh -c 'mkdir -p "$1" && cat >"$1/hosts.toml"' sh "/etc/containerd/certs.d/$(address)" <<TOML
[host."http://$registry:5000"]
TOML
    done
}

address() { echo "localhost:$(docker port "$registry" 5000/tcp | head -n 1 | sed 's/.*://')"; }

use_kind() {
    docker info >/dev/null 2>&1 || fail "kind needs a Docker engine, and none is running; start one, or set E2E_CONTEXT to use another cluster"
    [ -n "${E2E_IMAGE:-}" ] || docker image inspect torchtally:cpu >/dev/null 2>&1 ||
        fail "image torchtally:cpu doesn't exist; to build it, run make image"
    tools/install.py kind
    if [ -z "${E2E_KEEP:-}" ]; then
        trap delete_cluster EXIT
        delete_cluster
        create_cluster
    elif ! kind get kubeconfig --name "$cluster" >"$KUBECONFIG" 2>/dev/null; then
        delete_cluster
        create_cluster
    fi
    if [ -z "${E2E_IMAGE:-}" ]; then
        log "pushing torchtally:cpu"
        E2E_IMAGE=$(DEVICE=cpu REGISTRY=$(address) docker/image.sh push | tail -n 1)
    fi
    if [ -n "${E2E_TASKS:-}" ]; then
        log "pushing torchtally:cpu-keras-mlflow-spark"
        E2E_TASKS_IMAGE=$(DEVICE=cpu EXTRAS=keras,mlflow,spark REGISTRY=$(address) docker/image.sh push | tail -n 1)
    fi
    export E2E_DATA=/e2e/data
    E2E_REGISTRY=$(address)
    export E2E_REGISTRY
}

tools/install.py helm kubectl
mkdir -p build/e2e
if [ -n "${E2E_CONTEXT:-}" ]; then use_context; else use_kind; fi
export E2E_IMAGE E2E_TASKS_IMAGE=${E2E_TASKS_IMAGE:-}
log "$E2E_IMAGE on $(kubectl config current-context)"
if [ "${1:-}" = -- ]; then
    "${@:2}"
else
    python -m pytest tests/e2e -m 'not nightly' "$@"
fi
