"""What a user would otherwise run, each started by torchrun: `torchrun … -m bench.peers.blog TASK FOLDER STEPS`."""
