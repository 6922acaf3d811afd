"""Not a test: saves checkpoints in child processes that die, and says what is left each time.

First they are killed before each single change to the disk: saving step 1 where nothing is, step 2
beside it, and step 2 again in its own place, keeping one. Then at random moments of a long run.
Prints one line of JSON for each death: `python dying.py EMPTY_FOLDER`.
"""

import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from archwright import checkpoint

CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}


def trained(step: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer all of whose tensors tell the step."""
    model = torch.nn.Linear(200, 200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for tensor in (*model.parameters(), *_moments(optimizer)):
        tensor.data.fill_(step)
    return model, optimizer


def save(folder: Path, step: int, keep: int) -> None:
    model, optimizer = trained(step)
    state = {"step": step}
    checkpoint.save(
        folder, step, model=model, optimizers={"main": optimizer}, state=state, keep=keep
    )


def load(folder: Path) -> int:
    """Return the step of the newest checkpoint, 0 for none; it must be of one step throughout."""
    path = checkpoint.use_latest(folder, partial(checkpoint.verify, hashes=True))
    if path is None:
        return 0
    model, optimizer = trained(0)
    step = checkpoint.load(path, model=model, optimizers={"main": optimizer})["step"]
    for tensor in (*model.parameters(), *_moments(optimizer)):
        assert (tensor == step).all(), f"{path} mixes steps"
    return int(step)


def die_at_random(folder: Path, count: int) -> None:
    """Die `count` times, and on a machine too busy to save anything in between, more often."""
    loaded = 0
    for seed in range(10 * count):
        if seed >= count and loaded > 3:
            break
        started, begin = os.pipe()
        pid = os.fork()
        if pid == 0:
            checkpoint.remove_stale(folder)
            os.write(begin, b"!")
            for step in itertools.count(load(folder) + 1):
                save(folder, step, keep=2)
                (folder.parent / "saved").write_text(str(step))
        os.read(started, 1)
        time.sleep(random.Random(seed).uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told = folder.parent / "saved"
        saved = int(told.read_text() or 0) if told.exists() else 0
        loaded = load(folder)
        print(json.dumps({"case": "random", "saved": saved, "loaded": loaded}))


def die_at_each_change(folder: Path, step: int, case: str) -> None:
    for change in itertools.count(1):
        pid = os.fork()
        if pid == 0:
            _die_at(change, folder)
            save(folder, step, keep=1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        before = load(folder)
        checkpoint.remove_stale(folder)
        left = sorted(path.name for path in folder.glob("*"))
        found = {"before": before, "after": load(folder), "left": left}
        print(json.dumps({"case": case, "code": code, **found}))
        if code == 0:
            break


def _die_at(change: int, folder: Path) -> None:
    counter = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        ours = event in CHANGES and str(arguments[0]).startswith(str(folder))
        if ours and next(counter) == change:
            os._exit(9)

    sys.addaudithook(hook)


def _moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        tensor
        for state in optimizer.state.values()
        for name, tensor in state.items()
        if name != "step"
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as elsewhere:  # import all that torch imports late, once
        save(Path(elsewhere), 1, keep=1)
    target = Path(sys.argv[1]) / "checkpoints"
    for number, kind in ((1, "first"), (2, "next"), (2, "again")):
        die_at_each_change(target, number, kind)
    die_at_random(target, count=10)
