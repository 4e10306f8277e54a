"""What test_prefork.py has ranks do: main() tells what it sees, as a line of JSON, and then what its argument says."""

import builtins
import json
import os
import signal
import sys
from pathlib import Path


def main() -> int:
    forked = hasattr(builtins, "agent")
    told = {"rank": os.environ["RANK"], "restart": os.environ["TORCHELASTIC_RESTART_COUNT"], "forked": forked}
    told |= {"argv": sys.argv[1:], "pid": os.getpid(), "group": os.getpgrp()}
    told |= {"name": Path("/proc/self/comm").read_text().strip()}
    if forked:  # has it imported already
        import torch

        told["threads"] = torch.get_num_threads()
    print(f"{json.dumps(told)}\n", end="")  # in one go: unbuffered, it would mix with the other rank's
    match sys.argv[1]:
        case "pause":
            signal.pause()
        case "pause once" if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
