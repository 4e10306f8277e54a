"""Both ways to an image of your own, as the page has them."""

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pods import IMAGE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/own-image.md").read_text()
EXTENDED, OWN = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
# A build behind a proxy trusts what this machine trusts.
TRUSTING = "COPY ca.crt /etc/ssl/certs/ca-certificates.crt\nENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt\n"
# An image with PyTorch and pip, and with nothing of torchtally.
BASE = f"""\
FROM {IMAGE}
USER 0
{TRUSTING}
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip
RUN /usr/bin/pip --python /opt/torchtally/venv install pip
RUN rm -r /opt/torchtally/venv/bin/torchtally /opt/torchtally/venv/lib/python3*/site-packages/torchtally*
RUN python -m pip uninstall --yes filelock fsspec loky pooch prometheus-client threadpoolctl
ENV TORCHTALLY_OBSERVE= TORCHTALLY_CACHE= TORCHTALLY_OUTPUT= HOME=/root USER=
WORKDIR /
ENTRYPOINT []
"""
TRAIN = """\
import torch
import torch.distributed as dist
from torchtally import Account

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with Account("rows", epochs=1) as account:
    account.optimizer(optimizer)
    loader = account.loader(torch.utils.data.TensorDataset(torch.ones(101, 2)), batch_size=5)
    for _ in account.epochs():
        for (rows,) in loader:
            optimizer.zero_grad()
            account.weigh(model(rows).mean()).backward()
            optimizer.step()
dist.destroy_process_group()
"""


def docker(*arguments: object) -> str:
    ended = subprocess.run(["docker", *map(str, arguments)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def built(image: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Builds the image of a Dockerfile, beside train.py and the wheel, and returns its name."""
    folder, names = tmp_path_factory.mktemp("context"), []
    shutil.copy(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"), folder / "ca.crt")
    (folder / "train.py").write_text(TRAIN)
    subprocess.run(["uv", "build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT / "trainer"], check=True)

    def build(dockerfile: str, *options: str) -> str:
        (folder / "Dockerfile").write_text(dockerfile)
        names.append(f"torchtally-test:{uuid.uuid4().hex}")
        docker("build", "--quiet", "--tag", names[-1], *options, folder)
        return names[-1]

    yield build
    docker("image", "rm", "--force", *names)


def is_proved(name: str, folder: Path) -> None:
    """Train in a pod as strict as the chart makes it, and verify its log with the same image."""
    strict = ["--read-only", "--tmpfs=/tmp:exec", "--tmpfs=/output:mode=0777", "--tmpfs=/cache:mode=0777"]
    strict += ["--cap-drop=ALL", "--user=12345:0", "--env=PET_NPROC_PER_NODE=2"]
    log = folder / "run.log"
    log.write_text(docker("run", "--rm", *strict, name, "run", "train.py"))
    verified = docker("run", "--rm", f"--volume={log}:/run.log:ro", name, "verify", "/run.log")
    assert re.search(r"train +1 +all +2 +101 +101 +0 +0  ✓ every sample exactly once", verified)


def test_packages_are_added_to_the_image(built: Any, tmp_path: Path) -> None:
    assert EXTENDED.count("FROM torchtally:cpu") == 2
    trusting = built(f"FROM {IMAGE}\nUSER 0\n{TRUSTING}USER 1000:0\n")
    name = built(EXTENDED.replace("FROM torchtally:cpu", f"FROM {trusting}"))
    is_proved(name, tmp_path)
    of_packages = "import einops, importlib.util; print(einops.__name__, importlib.util.find_spec('pip'))"
    assert "einops None\n" in docker("run", "--rm", name, "run", "--", "python", "-c", of_packages)


def test_torchtally_is_added_to_an_image_which_keeps_its_torch(built: Any, tmp_path: Path) -> None:
    base = built(BASE)
    name = built(OWN, f"--build-arg=BASE={base}")
    version = ["python", "-c", "import torch; print(torch.__version__)"]
    assert docker("run", "--rm", "--entrypoint=", name, *version) == docker("run", "--rm", base, *version)
    is_proved(name, tmp_path)
