"""Records and proves which samples were consumed: the part that a user's own code imports."""
