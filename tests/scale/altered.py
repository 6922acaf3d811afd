"""archwright's command as one of several processes, of which one thing is other than usual.

As a module that torchrun starts: `python -m tests.scale.altered CHANGE WORDS...`. CHANGE is "slow", a first process
that samples for longer than processes wait for each other, "reading", another one that reads the data for so long,
"unread", one that cannot read it, or "undrawn", where no initial weight can be drawn.
"""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from archwright.cli import main
from archwright.model.model import Decoder
from archwright.scale import connections, group
from archwright.spec.errors import UserError
from archwright.training import finalize, ranks, sharded

PATIENCE = 12.0
T = TypeVar("T")


def _slow() -> None:
    finalize._sample = _for_too_long(finalize._sample)


def _reading() -> None:
    """Only the processes that follow come to `ranks.reload_data`."""
    ranks.reload_data = _for_too_long(ranks.reload_data)


def _for_too_long(plain: Callable[..., T]) -> Callable[..., T]:
    """Return a function that takes longer than processes wait for each other, from now on."""
    assert timedelta(seconds=PATIENCE) < connections.PATIENCE
    connections.PATIENCE, group.WAIT_SECONDS = timedelta(seconds=PATIENCE), PATIENCE / 4

    def slow(*args: Any) -> T:
        time.sleep(1.7 * PATIENCE)
        return plain(*args)

    return slow


def _unread() -> None:
    def reload(*args: Any) -> NoReturn:
        time.sleep(1)
        raise UserError("the text has changed")

    ranks.reload_data = reload


def _undrawn() -> None:
    plain = sharded.initial_draws

    def draw() -> NoReturn:
        raise AssertionError("the initial value of a weight is drawn")

    def draws(model: Decoder, *args: Any, **kwargs: Any) -> Iterator[Any]:
        weights = dict(model.named_parameters())
        for name, drawn in plain(model, *args, **kwargs):
            yield name, draw if name in weights else drawn

    sharded.initial_draws = draws


if __name__ == "__main__":
    change, *words = sys.argv[1:]
    changes = {"slow": _slow, "reading": _reading, "unread": _unread, "undrawn": _undrawn}
    changes[change]()
    raise SystemExit(main(words))
