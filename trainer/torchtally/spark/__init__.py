"""`torchtally spark`: the same tasks, their ranks started by pyspark's TorchDistributor.

`driver` is what a user runs, `executor` what Spark runs elsewhere; `java`, `cluster` and `heard` serve the driver.
"""
