"""Functions of the user that see a run's records while it trains, and may end it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from archwright.checkpoint.rng import read_generators, set_generators
from archwright.runs.records import Record
from archwright.spec.errors import UserError

Callback = Callable[[Record], object]
"""Takes a record, with the keys that it has in metrics.jsonl; its result is not looked at."""


class StopTraining(Exception):  # noqa: N818
    """A callback raises this so that the step just made is the run's last: it is evaluated and finished as any run.

    Args:
        reason: what the run's page says.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class CallbackError(Exception):
    """A callback failed; its own error is the cause.

    Args:
        name: `on_step` or `on_evaluation`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Callbacks:
    """The functions of a run, called after everything that belongs to a step is done and recorded.

    Raises:
        UserError: one is no function.
    """

    on_step: Callback | None = None
    on_evaluation: Callback | None = None

    def __post_init__(self) -> None:
        lines = [
            f"{name}: found {type(value).__name__}; expected a function that takes one record"
            for name, value in vars(self).items()
            if value is not None and not callable(value)
        ]
        if lines:
            raise UserError(*lines)

    def call(self, name: Literal["on_step", "on_evaluation"], record: Record) -> None:
        """Give a function a copy of a record. All random numbers are afterwards as if it had drawn none.

        Raises:
            StopTraining: it wants the run to end.
            CallbackError: it failed.
        """
        callback = self.on_step if name == "on_step" else self.on_evaluation
        if callback is None:
            return
        generators = read_generators()
        try:
            callback(dict(record))
        except StopTraining:
            raise
        except Exception as error:
            raise CallbackError(name) from error
        finally:
            set_generators(generators)
