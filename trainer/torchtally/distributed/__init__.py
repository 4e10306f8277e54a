"""Operations of all ranks together: the handshake, the process group, gradients and running statistics."""
