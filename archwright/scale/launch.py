"""How this process was started: alone, or as one of several by torchrun. Imports no torch."""

import os
from typing import NamedTuple

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets in the environment of each process."""


class Launch(NamedTuple):
    """The place of a process among those that were started together."""

    rank: int
    size: int
    local_rank: int
    """Its place among those of its machine."""
    local_size: int

    @property
    def is_first(self) -> bool:
        """Whether it is the one that decides, writes and prints."""
        return self.rank == 0


def launched() -> Launch | None:
    """Return the place of this process among several; None where it was started alone."""
    if any(name not in os.environ for name in VARIABLES):
        return None
    found = Launch(*(int(os.environ[name]) for name in VARIABLES[:4]))
    return found if found.size > 1 else None
