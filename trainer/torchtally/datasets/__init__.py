"""Named datasets, fetched from a mirror or a package registry and verified by checksums."""
