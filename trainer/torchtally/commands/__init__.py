"""The main function of a rank: train or evaluate a built-in task."""
