"""The commands of `torchtally`, beside `run` and `spark`.

train, evaluate  the main function of a rank of a built-in task (setup: what they share)
verify           prove a run from its logs, or from a proof (archived: a proof, and the files that it must be of)
jobs             the jobs of a cluster
local            a PyTorchJob on this machine
observe          a training in any image
"""
