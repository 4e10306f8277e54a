"""The alternatives to torchtally, started by torchrun: `torchrun … -m bench.peers.blog TASK FOLDER STEPS`."""
