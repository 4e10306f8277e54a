"""The built-in tasks: one file each, a model, its data and its loss, and nothing about ranks."""
