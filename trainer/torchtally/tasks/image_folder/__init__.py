"""A classification model of torchvision on a folder of images."""
