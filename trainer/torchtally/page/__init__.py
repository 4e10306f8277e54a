"""A run on a page: one HTML file with charts, which needs no network."""
