"""A process of two that meet, of which one is killed once, and meet again when torchrun has started both again.

As torchrun starts it: `python -m tests.scale.restarted FOLDER VICTIM`. FOLDER is where the two leave what they did,
VICTIM the number of the process that is killed in its first life. The other one does nothing then: its torchrun hears
from the other torchrun alone that all begin again, which it does not count as a restart.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from archwright.scale import connections, group
from archwright.scale.launch import launched

connections.PATIENCE = timedelta(seconds=90)
"""Less than the test waits, so that processes that miss each other say so."""


def main(folder: Path, victim: int) -> None:
    launch = launched()
    assert launch is not None, "torchrun starts this"
    mine = folder / f"starts-{launch.rank}"
    with mine.open("a") as file:
        print(os.environ["TORCHELASTIC_RESTART_COUNT"], file=file)
    has_died = (folder / "died").exists()
    both = group.Group(launch)
    if launch.rank == 0:
        both.begin({"do": "train", "device": "cpu", "layout": [1, 2], "after": has_died})
    else:
        order = both.wait_to_begin()
        assert order["after"] == has_died, "the order is that of the processes of now"
    both.meet()
    if not has_died:
        (folder / f"met-{launch.rank}").touch()
        if launch.rank != victim:
            time.sleep(300)  # until torchrun ends it
            raise SystemExit("torchrun has not ended this process")
        while not (folder / f"met-{1 - victim}").exists():
            time.sleep(0.05)
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    both.leave()
    # The same processes are a group once more, of which one comes late and has nothing to do.
    again = group.Group(launch)
    if launch.rank == 0:
        again.begin({"do": group.LEAVE})
    else:
        time.sleep(1)
        assert again.wait_to_begin()["do"] == group.LEAVE
    with mine.open("a") as file:
        print("left", file=file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
