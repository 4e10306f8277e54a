"""What the ledger cannot know: whether the weights are those of the run."""
