"""Watchers of a training: MLflow, Prometheus, and Kubeflow Trainer."""
