"""Watchers of a training: MLflow, TensorBoard, Prometheus, and Kubeflow Trainer."""
