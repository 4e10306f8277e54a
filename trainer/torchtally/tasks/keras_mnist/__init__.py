"""MNIST with a Keras model."""
