"""torch.compile needs a compiler, which is an extra."""

import shutil
import subprocess

import pytest

IMAGE = "torchtally:cpu-compile"
SCRIPT = """
import torch

def function(x):
    return torch.nn.functional.gelu(x @ x.T).sum()

torch.manual_seed(1)
plain, compiled = (torch.randn(64, 64).requires_grad_() for _ in range(2))
compiled.data.copy_(plain.data)
function(plain).backward()
torch.compile(function)(compiled).backward()
torch.testing.assert_close(compiled.grad, plain.grad)
print("the same gradient, of", torch._dynamo.utils.counters["stats"]["unique_graphs"], "graph")
"""


def test_a_compiled_function_has_the_gradient_of_the_plain_one() -> None:
    """As in a pod: nothing can be written but a folder for temporary files."""
    inspect = ["docker", "image", "inspect", IMAGE]
    if not shutil.which("docker") or subprocess.run(inspect, capture_output=True).returncode:
        pytest.skip(f"no image {IMAGE}: `make image EXTRAS=compile` builds it")
    pod = ["docker", "run", "--rm", "--read-only", "--tmpfs=/tmp:exec", "--cap-drop=ALL", "--user=12345:0", IMAGE]
    done = subprocess.run([*pod, "run", "--", "python", "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.stdout == "the same gradient, of 1 graph\n", done.stderr
