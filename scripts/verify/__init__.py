"""The parts of verify_shards: lines (read), expected (recompute), verdict (compare), report (show), cluster (fetch)."""
