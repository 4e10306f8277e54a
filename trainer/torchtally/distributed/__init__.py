"""Collective operations of all ranks: the handshake, the process group, gradients and running statistics."""
