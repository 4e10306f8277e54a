"""Watchers of a training: trackers, TensorBoard, and Prometheus."""
