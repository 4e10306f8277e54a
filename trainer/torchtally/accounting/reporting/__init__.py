"""Speed and progress, for people and metrics."""
