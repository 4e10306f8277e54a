"""A Spark standalone cluster on this machine: pyspark's own master and workers."""

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import ranks
from launched import until


class Cluster:
    """A master and workers of one core each; `folder` gets their logs and, in `work`, those of the executors."""

    def __init__(self, folder: Path, workers: int, environment: dict[str, str]) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        port, self._ui = ranks.free_port(), ranks.free_port()
        self.master = f"spark://localhost:{port}"  # by a name, as a Service gives it
        self._environment = environment | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        try:
            self._start("master.Master", "--port", str(port), "--webui-port", str(self._ui))
            until("the master", lambda: self.state() is not None)
            for number in range(workers):
                local = folder / f"local-{number}"
                options = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work/{number}")]
                self._start("worker.Worker", *options, "--webui-port", "0", self.master, SPARK_LOCAL_DIRS=str(local))
            until("the workers", lambda: (self.state() or {}).get("aliveworkers") == workers)
        except BaseException:
            self.stop()
            raise

    def state(self) -> dict[str, Any] | None:
        """What the master knows, None before it answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return None

    def executors(self) -> list[psutil.Process]:
        """Those that run now."""
        found = [each for own in self._processes for each in psutil.Process(own.pid).children(recursive=True)]
        return [each for each in found if "CoarseGrainedExecutorBackend" in " ".join(_command(each))]

    def logs(self, run: str) -> list[Path]:
        """Those of the executors that tell of `run`."""
        return [log for log in self.folder.glob("work/*/*/*/std*") if f'"run":"{run}"' in log.read_text()]

    def stop(self) -> None:
        for process in self._processes:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()
            process.wait()

    def _start(self, name: str, *options: str, **more: str) -> None:
        import pyspark  # nightly tests alone need it

        log = (self.folder / f"{len(self._processes)}-{name}.log").open("wb")
        command = [
            Path(pyspark.__file__).parent / "bin/spark-class",
            f"org.apache.spark.deploy.{name}",
            "--host",
            "127.0.0.1",
            *options,
        ]
        self._processes.append(
            subprocess.Popen(command, env=self._environment | more, stdout=log, stderr=log, cwd=self.folder)
        )


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
