"""Fashion-MNIST with a multilayer perceptron."""
