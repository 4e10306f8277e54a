"""What counts, and how far the run is."""
