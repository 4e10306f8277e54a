class BadManifest(Exception):
    """A manifest that cannot be read or changed. Its text is for people."""
