"""Manifests as people write them, and such that cannot be observed."""

OBSERVED = ("PyTorchJob", "TrainJob", "Job", "JobSet", "Pod", "List")

_JOB = """\
# The training of team A
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: job  # its name
  namespace: team-a
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              image: "team/train:1"
              env:
                - name: EPOCHS
                  value: "3"   # a few
              # what it runs
              command: ["python", "main.py"]
            - name: proxy
              image: proxy

    # all others
    Worker:
      replicas: 3
      template:
        spec:
          containers:
            - name: pytorch
              image: "team/train:1"
              env: [{name: PYTHONPATH, value: /src}]
              command:
                - python
                - main.py
          volumes:
            - name: scratch
              emptyDir: {}
---
apiVersion: v1
kind: Service
metadata: {name:   apart}  # stays as it is
"""

_ANCHORS = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  generateName: job-
spec:
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      template:
        spec:
          containers:
          - &container
            name: pytorch
            image: x
            args:
            - |
              a: b

              --- c
            - >-
              folded
              text
          # behind the containers
    Worker:
      <<: *replica
      replicas: 3
"""

_HELM = """\
---
# Source: demo/templates/test.yaml
apiVersion: v1
kind: Pod
metadata:
  name: test
  annotations:
    "helm.sh/hook": test
spec:
  containers: [{name: a, image: x}, {name: b, image: x}]
---
# Source: demo/templates/empty.yaml
---
# Source: demo/templates/job.yaml
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: "job"}
spec:
  pytorchReplicaSpecs:
    "Worker":
      template:
        spec:
          volumes:
          - {name: a, emptyDir: {}}
          containers:
          - command:
            - "sh"
            - "-c"
            - |+
              python train.py

            name: pytorch
"""

_TRAIN_JOBS = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: one, namespace: a}
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    numNodes: 2
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: two, namespace: b}
spec:
  trainer:
    env:
      - {name: PYTHONPATH, value: "/src"}
  runtimePatches:
    - manager: team.example/own
  runtimeRef: {name: torch-distributed}
"""

_JOB_SET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set}
spec:
  replicatedJobs:
  - name: workers
    template:
      spec:
        template:
          spec:
            containers:
            - {name: train, image: x, volumeMounts: []}
"""

_JSON = """\
{
    "apiVersion": "v1",
    "items": [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "b", "namespace": "n"},
            "spec": {
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "main",
                                "env": [
                                    {
                                        "name": "PYTHONPATH",
                                        "value": "/a:/b"
                                    }
                                ]
                            }
                        ]
                    }
                }
            }
        }
    ],
    "kind": "List"
}
"""

_POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  containers:
  - name: only
    image: x
    args: [
      "a"
    ]
"""

_SHARED = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: j}
spec:
  pytorchReplicaSpecs:
    Master:
      template:
        spec:
          containers:
            - name: pytorch
              env: &env
                - {name: A, value: b}
              volumeMounts: &mounts
              - name: a
                mountPath: /a
          volumes: &volumes
            - name: a
    Worker:
      template:
        spec:
          containers:
            - &worker
              name: pytorch
              env: *env
              volumeMounts: *mounts
          volumes: *volumes
"""

_VALUES = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: only
    image: &image /src
    env:
    - name: PYTHONPATH
      value: /hidden
    - name: PYTHONPATH
      value: *image
    - name: A
      value: b
"""

ALL = {
    "a job of its own": _JOB,
    "anchors and merged keys": _ANCHORS,
    "lists that aliases share": _SHARED,
    "a value that is an alias": _VALUES,
    "a value in a block of text": _VALUES.replace("*image", ">-\n        /src"),
    "what helm template prints": _HELM,
    "TrainJobs in two namespaces": _TRAIN_JOBS,
    "a JobSet with an empty list": _JOB_SET,
    "a List in JSON": _JSON,
    "a pod": _POD,
    "without a last line end": _POD.rstrip(),
    "with line ends of Windows": _POD.replace("\n", "\r\n"),
    "with variables that are none": _POD.replace("image: x", "image: x\n    env:"),
}
# After --remove, a list that was or is empty, or the style of a value, may be another; its meaning is not.
REWRITTEN = (
    "a value in a block of text",
    "a value that is an alias",
    "a JobSet with an empty list",
    "a List in JSON",
    "with variables that are none",
    "without a last line end",
)
IN_BLOCKS = (
    "lists that aliases share",
    "anchors and merged keys",
    "what helm template prints",
    "a pod",
    "without a last line end",
)

OF_THE_SERVER = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"kubeflow.org/v1"}
    team: a
  creationTimestamp: "2026-01-02T03:04:05Z"
  generation: 2
  name: job
  namespace: team-a
  resourceVersion: "42"
  uid: 6c1d
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
          - name: pytorch
            image: x
status:
  conditions:
  - type: Succeeded
    status: "True"
  replicaStatuses: {}
"""

BATCH_OF_THE_SERVER = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: job
  labels:
    batch.kubernetes.io/controller-uid: 6c1d
  resourceVersion: "42"
spec:
  selector:
    matchLabels:
      batch.kubernetes.io/controller-uid: 6c1d
  template:
    metadata:
      labels:
        app: train
        batch.kubernetes.io/controller-uid: 6c1d
        job-name: job
    spec:
      containers:
      - name: train
"""


def pod(*containers: str, metadata: str = "name: p", container: str = "", spec: str = "") -> str:
    """A Pod with these containers."""
    each = "".join(f"  - name: {name}\n{container}" for name in containers)
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{{metadata}}}\nspec:\n{spec}  containers:\n{each}"


_NONE = "holds no PyTorchJob, TrainJob, Job, JobSet, or Pod: it holds "
_OWN_VOLUME = "  volumes:\n  - {name: torchtally-observer, emptyDir: {}}\n"
_OWN_MOUNT = "    volumeMounts: [{name: a, mountPath: /opt/torchtally-observer}]\n"
_ANCHORED = "    env: [{name: PYTHONPATH, value: &a /b}, {name: C, value: *a}]\n"
_ELSEWHERE = "    env:\n    - name: PYTHONPATH\n      valueFrom: {configMapKeyRef: {name: a, key: b}}\n"
BAD: list[tuple[str | bytes, str]] = [
    ("", f"{_NONE}nothing"),
    ("only text", f"{_NONE}an object without a kind"),
    ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n", f"{_NONE}Deployment web of apps"),
    ("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\n", f"{_NONE}Job v of batch.volcano.sh"),
    ("a: [b", "line 1, column 6: not YAML: "),
    ("a: 1\n---\nb: 2\n  c: 3\n", "line 4, column 4: not YAML: "),
    ("a: *b\n", "the anchor b of an alias is not in its document"),
    (b"\xff\xfe", "not a text in UTF-8"),
    ("a: \x00", "special characters are not allowed"),
    ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\n", "PyTorchJob j has no pod"),
    (pod(), "Pod p has no container"),
    (pod("a", "b"), "Pod p has containers a, b: name the one that trains by --container"),
    (pod("a", metadata="name: p, uid: u"), "Pod p exists, and a Pod's containers cannot be changed"),
    (
        pod("a", metadata="name: p, ownerReferences: [{kind: PyTorchJob, name: j, controller: true}]"),
        "Pod p belongs to PyTorchJob j, which makes it: give the manifest of PyTorchJob j",
    ),
    (pod("a", container=_ELSEWHERE), "PYTHONPATH of container a comes from another object, which cannot be extended"),
    (pod("a", spec="  volumes: {}\n"), "volumes of a pod must be a list"),
    (pod("a", spec=_OWN_VOLUME), "Pod p has a volume torchtally-observer of its own: give it another name"),
    (pod("a", container=_OWN_MOUNT), "mounts a volume of its own at /opt/torchtally-observer"),
    (pod("a", container=_ANCHORED), "PYTHONPATH of container a is an anchor for other values, too"),
    (pod("a", container="    env:\n    image: x\n    env: []\n"), "Pod p has the key env twice in one place"),
    ("%YAML 1.1\n---\n" + pod("a"), "line 1: remove %YAML 1.1"),
    ("{{- if .Values.job }}\n" + pod("a"), "a Helm template: give what `helm template` prints"),
]
