"""Checkpoints: rounds in which all ranks save and stop, and those of a user's loop, sharded, in any storage."""
