"""Callbacks receive a run's records during training, and may end the run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from archwright.checkpoint.rng import read_generators, set_generators
from archwright.runs.records import Record
from archwright.spec.errors import UserError

CallbackName = Literal["on_step", "on_evaluation"]
Callback = Callable[[Record], object]
"""Takes a record with the keys of metrics.jsonl; the result is ignored."""


class StopTraining(Exception):  # noqa: N818
    """Raised by a callback to end the run: it is evaluated and finished as usual.

    Args:
        reason: Text for the run's page.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class CallbackError(Exception):
    """A callback raised another exception, which is the cause.

    Args:
        name: `on_step` or `on_evaluation`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a run, called after a step is complete and recorded.

    Raises:
        UserError: a callback is not callable.
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

    def call(self, name: CallbackName, record: Record) -> None:
        """Call a callback with a copy of a record, and restore all random number generators.

        Raises:
            StopTraining: the callback ends the run.
            CallbackError: the callback failed.
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
