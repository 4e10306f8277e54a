#!/usr/bin/env bash
# The end-to-end tests: makes a kind cluster with a registry beside it, pushes torchtally:cpu there, runs tests/e2e and
# deletes what it made. Arguments go to pytest (-m '': the whole table of faults); behind -- they are another command that
# runs on this cluster, in place of the tests (make bench-cluster). From the environment, each optional:
#   E2E_KEEP        1: keep the cluster, and use a kept one again
#   E2E_NODE_IMAGE  kind's node image
#   E2E_CONTEXT     a context of your kubeconfig, with the training operator installed: that cluster is used, in
#                   namespaces of the tests' own, and left as it was; it needs
#   E2E_IMAGE       an image that it can pull, and may have
#   E2E_TASKS       1: the tasks, too, that need torchtally:cpu-keras-mlflow-spark (on a cluster of yours:
#                   E2E_TASKS_IMAGE); else these are skipped
#   E2E_DATA        a folder on each of its nodes with the data in fashion-mnist/ and mnist/; else the pods download it
#   E2E_MANIFESTS   a folder with jobset.yaml, trainer.yaml, trainer-runtimes.yaml and kueue.yaml, where GitHub, from which
#                   they come, cannot be reached
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=torchtally-e2e
registry=torchtally-e2e-registry
node_image=${E2E_NODE_IMAGE:-kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d}
users=${KUBECONFIG:-$HOME/.kube/config}
export KUBECONFIG=$PWD/build/e2e/kubeconfig

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
fail() {
    echo "e2e: $*" >&2
    exit 2
}

use_context() {
    [ -n "${E2E_IMAGE:-}" ] || fail "E2E_CONTEXT is '$E2E_CONTEXT', so E2E_IMAGE has to name an image that its nodes can pull"
    (umask 077 && KUBECONFIG=$users kubectl config view --minify --flatten --context="$E2E_CONTEXT" >"$KUBECONFIG") 2>/dev/null ||
        fail "E2E_CONTEXT is '$E2E_CONTEXT', which kubectl does not find in your kubeconfig"
}

delete_cluster() {
    kind delete cluster --quiet --name "$cluster" || true
    docker rm --force --volumes "$registry" >/dev/null 2>&1 || true
}

# Fills the cache that the trainer itself uses.
data_folder() {
    python - <<'PYTHON'
import os

from torchtally.datasets import idx
from torchtally.environment import Places

places = Places.from_env(os.environ)
for dataset in (idx.FASHION_MNIST, idx.MNIST):
    idx.load(dataset, None, places.cache)
print(places.cache.absolute())
PYTHON
}

create_cluster() {
    local folder node shared=$PWD/build/e2e/shared
    folder=$(data_folder)
    mkdir -p "$shared"
    say "creating the kind cluster $cluster"
    docker run --detach --restart=always --publish 127.0.0.1::5000 --name "$registry" registry:2 >/dev/null
    # --quiet would be silent about errors, too.
    kind create cluster --name "$cluster" --image "$node_image" --wait 5m --config - >build/e2e/kind.log 2>&1 <<YAML ||
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
  - role: control-plane
  - role: worker
    extraMounts: &mounts
      - {hostPath: "$folder/fashion-mnist", containerPath: /e2e/data/fashion-mnist, readOnly: true}
      - {hostPath: "$folder/mnist", containerPath: /e2e/data/mnist, readOnly: true}
      - {hostPath: "$shared", containerPath: /e2e/shared}
  - {role: worker, extraMounts: *mounts}
YAML
        { cat build/e2e/kind.log >&2; fail "kind made no cluster"; }
    # As in kind's guide: on the nodes, the registry's name on this machine stands for its name on kind's network.
    docker network connect kind "$registry"
    for node in $(kind get nodes --name "$cluster"); do
        docker exec -i "$node" sh -c 'mkdir -p "$1" && cat >"$1/hosts.toml"' sh "/etc/containerd/certs.d/$(address)" <<TOML
[host."http://$registry:5000"]
TOML
    done
}

address() { echo "localhost:$(docker port "$registry" 5000/tcp | head -n 1 | sed 's/.*://')"; }

use_kind() {
    docker info >/dev/null 2>&1 || fail "no Docker engine answers; kind needs one (or name a cluster with E2E_CONTEXT)"
    [ -n "${E2E_IMAGE:-}" ] || docker image inspect torchtally:cpu >/dev/null 2>&1 ||
        fail "there is no image torchtally:cpu: build it with make image"
    scripts/tools.py kind
    if [ -z "${E2E_KEEP:-}" ]; then
        trap delete_cluster EXIT
        delete_cluster
        create_cluster
    elif ! kind get kubeconfig --name "$cluster" >"$KUBECONFIG" 2>/dev/null; then
        delete_cluster
        create_cluster
    fi
    if [ -z "${E2E_IMAGE:-}" ]; then
        say "pushing torchtally:cpu"
        E2E_IMAGE=$(DEVICE=cpu REGISTRY=$(address) docker/image.sh push | tail -n 1)
    fi
    if [ -n "${E2E_TASKS:-}" ]; then
        say "pushing torchtally:cpu-keras-mlflow-spark"
        E2E_TASKS_IMAGE=$(DEVICE=cpu EXTRAS=keras,mlflow,spark REGISTRY=$(address) docker/image.sh push | tail -n 1)
    fi
    export E2E_DATA=/e2e/data
    E2E_REGISTRY=$(address)
    export E2E_REGISTRY
}

scripts/tools.py helm kubectl cosign syft
mkdir -p build/e2e
if [ -n "${E2E_CONTEXT:-}" ]; then use_context; else use_kind; fi
export E2E_IMAGE E2E_TASKS_IMAGE=${E2E_TASKS_IMAGE:-}
say "$E2E_IMAGE on $(kubectl config current-context)"
if [ "${1:-}" = -- ]; then
    "${@:2}"
else
    python -m pytest tests/e2e -m 'not rare' "$@"
fi
