"""The local runner: what the training operator does in a cluster, on one machine.

manifest     the documents of a file, and the job to run (trainjob: a TrainJob; nested_jobs: inside another object)
schema       errors that the API server would report: wrong types, fields that do not exist
webhook      errors that the operator's validation would report, in its words
job          the job under the operator's defaults, and its pods
environment  the variables and the command of each pod, as Kubernetes would set them
machine      the cores, GPUs and ports of this machine that a pod gets
unsupported  which fields of the manifest have no effect here
processes    a pod as a process of this machine (shim: the parent of all processes of the pod)
containers   a pod as a Docker container
controller   the operator's part: restarts, limits, deletion, suspension, the job's outcome, cleaning up
output       the pods' lines, each with the name of its pod
"""
