"""The arithmetic of orders, shards and digests, and the format of a tally line: numpy alone, never torch."""
