"""Checkpoints of a user's own loop: sharded, written in the background, in a folder or an object store."""
