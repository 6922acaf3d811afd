"""How this process loads its modules."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import inside this block without looking for garbage, and never look among what was imported.

    Modules stay as long as the process does, but each full collection walks through all of their
    objects: a tenth of what torch takes to load. Only a process of our own does this.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
