"""MNIST with a convolutional network."""
