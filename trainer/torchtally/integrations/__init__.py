"""Adapters for libraries that drive the loop. Each imports its library, which the user has."""
