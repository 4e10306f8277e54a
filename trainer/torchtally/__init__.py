"""Distributed PyTorch on Kubernetes that accounts for every sample."""
