"""A GPT on text files, sharded over all ranks."""
