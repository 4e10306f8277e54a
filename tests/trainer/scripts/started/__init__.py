"""A package that Python runs with -m."""
