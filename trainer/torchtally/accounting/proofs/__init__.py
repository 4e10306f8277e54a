"""Lines from tallies."""
