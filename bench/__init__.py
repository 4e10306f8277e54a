"""How fast torchtally is, measured beside what a user would otherwise run: `make bench`."""
