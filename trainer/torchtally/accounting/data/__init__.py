"""What a dataset tells of itself, and datasets made of others."""
