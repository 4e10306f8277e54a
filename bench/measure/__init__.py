"""Programs that each measure one thing and print samples: `python -m bench.measure.limits`."""
