"""The parts of `torchtally jobs`.

commands     what each command does
cluster      jobs, pods, and logs as the cluster has them
files        logs in a file or a folder, in place of a cluster
job_outcome  what a job comes to, and the exit status that tells it
job_status   a job at one moment, for all commands that show it (gathering: from a cluster, or from logs)
starting     where the time went until the first step
tables       an overview for people
watching     shows a job until it ends (follow: the logs of its pods as they are written)
fetching     copies the results of a job from its PVC
"""
