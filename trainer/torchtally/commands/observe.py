"""Observe a training in any image: what its DataLoaders hand out to each rank, without a changed line.

`inject` prints a manifest with the observer in it. `path` prints a folder for PYTHONPATH, where there is no manifest.
"""

import argparse
import io
import sys
from pathlib import Path

from torchtally import console
from torchtally.errors import Refused
from torchtally.inject import adding, observer, removing
from torchtally.inject.workloads import KINDS

EXAMPLES = """\
examples:
  torchtally observe inject -f job.yaml | kubectl apply -f -
  helm template my-chart | torchtally observe inject -f - | kubectl apply -f -
  kubectl get pytorchjob job -o yaml | torchtally observe inject -f - | kubectl replace --force -f -
  PYTHONPATH=$(torchtally observe path) python train.py

exit status: 0, or 2 for a manifest that cannot be read or changed; standard output is then empty.
"""


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if options.command == "path":
        console.show(str(observer.SOURCE))
        return 0
    source = "standard input" if options.file == "-" else options.file
    try:
        text = _read(options.file)
        if options.remove:
            text, notes = removing.removed(text)
        else:
            text, notes = adding.injected(text, options.container, options.pythonpath)
    except Refused as error:
        return console.refuse("torchtally observe", Refused(f"{source}: {error}"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="")  # the text is the manifest's own
    console.show(text, end="")
    for note in notes:
        print(f"torchtally observe: {note}", file=sys.stderr)
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(
        prog="torchtally observe",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inject = kinds.add_parser(
        "inject", help=f"print a manifest ({KINDS}) with a ConfigMap, a volume, and PYTHONPATH added"
    )
    inject.add_argument("-f", "--file", required=True, metavar="FILE", help="the manifest; - reads standard input")
    inject.add_argument(
        "--container",
        action="append",
        default=[],
        metavar="NAME",
        help="a container that trains; repeatable (default: a PyTorchJob's pytorch, a JobSet's node, or the only one)",
    )
    inject.add_argument(
        "--pythonpath", default="", metavar="VALUE", help="PYTHONPATH of the image, which that of a manifest hides"
    )
    inject.add_argument("--remove", action="store_true", help="take the observer out of the manifest again")
    kinds.add_parser("path", help="print the folder of the observer, for PYTHONPATH")
    return parser.parse_args(argv)


def _read(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused("not a text in UTF-8") from None
