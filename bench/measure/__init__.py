"""Programs that measure one thing each, and print what they found as samples: `python -m bench.measure.limits`."""
