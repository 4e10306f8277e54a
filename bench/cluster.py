"""Seconds from `helm install` to the first step of 4 pods, by phase, compared with a manifest written by hand.

`make bench-cluster` runs it on the cluster of tools/e2e.sh. Writes bench/results/cluster/ and cluster.md.
"""

import argparse
import json
import os
import string
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.cluster_table import MEASURE, TOGETHER, text
from bench.results import FOLDER, Results
from bench.sample import Sample
from torchtally import events

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests/e2e"))  # shares the cluster and the helpers of the tests

import controllers  # noqa: E402
import nodes  # noqa: E402
from cluster import KIND_VALUES, LIMIT, Namespace, data_values, run, wait_for  # noqa: E402

_PEERS = ROOT / "bench/peers"


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if missing := [name for name in ("E2E_IMAGE", "E2E_DATA") if not os.environ.get(name)]:
        _say(f"{' and '.join(missing)} must be set: `make bench-cluster` makes a cluster (tools/e2e.sh)")
        return 2
    began, now = time.monotonic(), datetime.now(UTC)
    if not os.environ.get("E2E_CONTEXT"):
        controllers.apply_operator()
    results = Results(
        began=now.isoformat(timespec="seconds"),
        seconds=0.0,
        commit=machine.commit(),
        machine=machine.describe(),
        versions=_versions(),
    )
    failed = 0
    for number in range(1, options.rounds + 1):
        for tool, start in STARTS.items():
            failed += not _measure(tool, start, number, results)
    if not results.series:
        _say("nothing could be measured")
        return 1
    results.seconds = round(time.monotonic() - began, 1)
    path = FOLDER / "cluster" / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    results.save(path)
    (FOLDER / "cluster.md").write_text(text(results) + "\n")
    _say(f"wrote {path} and {FOLDER / 'cluster.md'}")
    return 1 if failed else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.cluster", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each is started (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, must be 1 or more")
    return options


def _ours(namespace: Namespace) -> str:
    namespace.install(*KIND_VALUES, *data_values())
    return "demo"


def _by_hand(namespace: Namespace) -> str:
    given = {"IMAGE": os.environ["E2E_IMAGE"], "DATA": os.environ["E2E_DATA"]}
    manifest = string.Template((_PEERS / "blog.yaml").read_text().partition("apiVersion")[2]).substitute(given)
    namespace.kubectl("apply", "--filename=-", text="apiVersion" + manifest)
    return "blog"


STARTS: dict[str, Callable[[Namespace], str]] = {"torchtally": _ours, "blog": _by_hand}  # each returns the job's name


def _measure(tool: str, start: Callable[[Namespace], str], number: int, results: Results) -> bool:
    """Add the phases of one start; returns False if it fails, which loses only this start."""
    load = os.getloadavg()[0]
    # Each start has its own namespace, without claims and DNS entries of the start before.
    namespace = Namespace(f"torchtally-bench-{tool}-{number}")
    try:
        forget_the_image()
        namespace.create()
        try:
            found = _phases(namespace, start)
        finally:
            namespace.delete()
            run("kubectl", "wait", "--for=delete", f"namespace/{namespace.name}", f"--timeout={LIMIT}s")
    except (AssertionError, subprocess.SubprocessError) as error:
        _say(f"round {number}, {tool}: {error}")
        return False
    _say(f"round {number}: {tool} made its first step after {found[TOGETHER]:.1f} s")
    for phase, seconds in found.items():
        case: dict[str, str | int] = {"tool": tool, "phase": phase}
        results.add(Sample(measure=MEASURE, case=case, unit="s", better="lower", value=seconds), number, load)
    return True


def _phases(namespace: Namespace, start: Callable[[Namespace], str]) -> dict[str, float]:
    """Seconds by phase, from right before the command; the command is the first, the total the last."""
    files = [f"--from-file={_PEERS / name}" for name in ("blog.py", "common.py")]
    namespace.kubectl("create", "configmap", "blog", *files)  # before the measurement, as if the image contained it
    began = time.time()
    job = start(namespace)
    # Polls one log only, because polling takes CPU time from the pods.
    log = f"{job}-master-0"
    wait_for(f"the first step of {job}", lambda: first_step(namespace.log(log)) is not None)
    script = [sys.executable, str(ROOT / "scripts/torchtally_jobs.py"), "status", job, "--namespace", namespace.name]
    found = json.loads(run(*script, "--json", check=False).stdout)["start"]  # its exit status is that of the job
    return phases(found, began, first_step(namespace.log(log)))


def phases(start: dict[str, Any], began: float, first: float | None) -> dict[str, float]:
    """Of the start that `status` shows. Of a script that reports no events, the rest is one phase."""
    before = start["created"] - began  # whole seconds: down to -1
    seconds, found = before + start["seconds"], {"command": max(0.0, before), **start["phases"]}
    if not any(name.endswith("first step") for name in found):
        assert first is not None
        found["import+rendezvous+data+first step"] = max(0.0, first - began - seconds)
        seconds = first - began
    return {**found, TOGETHER: seconds}


def first_step(log: str) -> float | None:
    """Seconds since 1970 of the first step, by its event or by the line of a script written by hand."""
    *lines, _ = log.split("\n")  # the last one may be half of one
    for record in events.in_lines(lines):
        if isinstance(record.event, events.Step):
            return record.time
    told = (json.loads(line) for line in lines if line.startswith("{") and '"first_step"' in line)
    return next((float(each["first_step"]) for each in told), None)


def forget_the_image() -> None:
    """Remove the image from the nodes, so that each start pulls it from the registry beside the cluster."""
    image, registry = os.environ["E2E_IMAGE"], os.environ.get("E2E_REGISTRY")
    if registry and image.startswith(f"{registry}/"):
        for node in nodes.workers():
            crictl = "crictl --timeout=60s"  # the default of 2 s is short on a node that has just run four pods
            # Exited containers keep the layers, which a pull would reuse.
            nodes.on(node, f"{crictl} ps --all --state=exited --quiet | xargs --no-run-if-empty {crictl} rm")
            nodes.on(node, f"! {crictl} inspecti --quiet {image} >/dev/null 2>&1 || {crictl} rmi {image}")


def _versions() -> dict[str, str]:
    server = json.loads(run("kubectl", "version", "--output=json").stdout)["serverVersion"]["gitVersion"]
    image = os.environ["E2E_IMAGE"].rpartition("/")[2]
    return {"kubernetes": server, "nodes for pods": str(len(nodes.workers())), "image": image}


def _say(text: str) -> None:
    print(f"bench.cluster: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
