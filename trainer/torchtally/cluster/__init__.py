"""The jobs of a cluster, as `torchtally verify` and `torchtally jobs` read them.

logs             fetches the logs of a job's pods (job_kinds: PyTorchJob and TrainJob; batch_kinds: JobSet and Job)
wait             waits until a job has ended
observer_volume  the volume by which a pod of another's image carries the observer
"""
