"""Samples on their way to the loop, with their indices."""
