"""What `torchtally check` looks at before a training: this machine, a cluster, and two steps of a script.

finding    what a check has found, and where the reference is about it
machine    the package, and the network
training   PyTorch and its GPUs: imported only where PyTorch is
cluster    operators, rights, storage, quota, and the admission of pods, by dry runs (manifests: what they send)
script     two ranks of a script, which are observed for two steps
two_steps  the program of each of these ranks
"""
