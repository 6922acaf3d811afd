"""archwright's command as one of several processes, of which the second is struck while it writes a checkpoint.

As a module that torchrun starts: `python -m tests.scale.struck BLOW STEP WORDS...`. BLOW is "full", a disk that takes
no more, or "killed"; STEP that of the checkpoint. After a restart nothing is struck.
"""

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

from archwright.checkpoint import weights
from archwright.cli import main


def strike(blow: str, step: str) -> None:
    """Let this process be struck when it has written a part of its part."""
    plain = weights.write_tensors

    def write(path: Path, *rest: Any) -> None:
        if path.parent.name == f".tmp-{step}" and path.name.startswith("optimizers"):
            path.write_bytes(b"half")
            if blow == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(path, *rest)

    weights.write_tensors = write


if __name__ == "__main__":
    blow, step, *words = sys.argv[1:]
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        strike(blow, step)
    raise SystemExit(main(words))
