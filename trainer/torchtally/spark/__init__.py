"""`torchtally spark`: built-in tasks whose ranks pyspark's TorchDistributor starts.

`driver` is the command and `executor` runs on the executors; `java`, `cluster` and `output` serve the driver.
"""
