"""The parts of startup: read (fetch), split (phases out of events, statuses and logs), waits (why there is no first
step), report (show)."""
