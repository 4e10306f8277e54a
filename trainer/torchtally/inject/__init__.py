"""The parts of `torchtally observe`.

adding       what a manifest gains
removing     how it loses that again, and what an API server has added to it
observer     the observer as a manifest carries it: a ConfigMap, a volume, and PYTHONPATH
workloads    where each kind of manifest keeps its pods, and which of their containers train
documents    a stream of documents, and edits of its text: what is not changed stays as it is, to the byte
nodes        a document's nodes, each with its place in the text
"""
