"""Two ranks on one device, as a part of `make bench-gpu`: a GPT in DDP over NCCL if it allows that, else over gloo.

gpu_ranks    BENCH_DEVICE is cuda, or cpu to rehearse

The entry point of torchtally starts one rank for each GPU, so torchrun starts these.
"""

import os
import sys

from bench import pack, processes
from bench.measure.throughput import environment, line
from bench.sample import emit, note

WORLD = 2
NOTE = "NCCL with two ranks on one GPU"
_STEPS = {"cuda": 100, "cpu": 5}  # of each rank
_SECONDS = 40  # of a training
_TOOLS = {"blog": "gpt_blog", "torchtally": "gpt_tallied"}
_TOKENS = 64  # of a sample


def main() -> None:
    os.environ["TORCHTALLY_DATA"] = str(pack.TEXT)
    device = os.environ["BENCH_DEVICE"]
    ended, backend = _run("blog", device, "nccl"), "nccl"
    note(NOTE, ended.failure or "it works")
    if ended.failure:
        ended, backend = _run("blog", device, "gloo"), "gloo"
    for tool in _TOOLS:
        if tool != "blog":
            ended = _run(tool, device, backend)
        if ended.failure:
            sys.exit(f"{tool} over {backend}: {ended.failure}\n{ended.errors[-2000:]}")
        result = line(ended.output)
        speed = _TOKENS * result["samples"] / result["seconds"]
        emit("throughput", speed, "tokens/s", "higher", task="gpt-ddp", world=WORLD, tool=tool, backend=backend)


def _run(tool: str, device: str, backend: str) -> processes.Ended:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    launch += [f"--nproc-per-node={WORLD}", "-m"]
    script = [f"bench.peers.{_TOOLS[tool]}", "gpt-ddp", os.environ["TORCHTALLY_CACHE"], str(_STEPS[device])]
    # By default, NCCL refuses several ranks on one GPU. A release that knows this variable allows them.
    own = {"BENCH_BACKEND": backend, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return processes.run([*launch, *script], environment(device) | own, _SECONDS)


if __name__ == "__main__":
    main()
