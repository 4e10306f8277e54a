"""Watchers of a training: MLflow, TensorBoard, and Prometheus."""
