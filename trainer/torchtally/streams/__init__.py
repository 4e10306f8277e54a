"""Datasets in shard files, local or in an object store, by the number of a sample: MDS, Parquet, WebDataset, tokens."""
