"""What the ledger cannot know: each guard finds one mistake, and can be switched off."""
