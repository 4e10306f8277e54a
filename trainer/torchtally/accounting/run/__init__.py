"""One start of a run, driven by the loop."""
