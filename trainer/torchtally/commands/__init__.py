"""The main function of a rank: training or evaluation of a built-in task."""
