"""A pod's life: launch, rendezvous, heartbeat, forked ranks, signals, exit codes and the termination message."""
