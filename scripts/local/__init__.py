"""The local runner: what the training operator does in a cluster, on one machine.

manifest     a file's documents, and which PyTorchJob of them is meant
schema       what the API server would refuse: wrong types, fields that do not exist
webhook      what the operator's validation would refuse, in its words
job          the job under the operator's defaults, and its pods
environment  the variables and the command of each pod, as Kubernetes would make them
machine      what this machine gives a pod: cores, GPUs, ports
left_out     what of the manifest cannot be honoured here
processes    a pod as a process of this machine (shim: the process that holds it together)
containers   a pod as a container of Docker's
controller   the operator's part: restarts, limits, deletion, suspension, the job's outcome, cleaning up
output       whole lines, each with the name of its pod
"""
