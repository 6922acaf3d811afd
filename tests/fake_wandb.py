"""Weights & Biases as far as it is used: what it is given is kept in lists."""

from types import ModuleType
from typing import Any


class FakeWandb(ModuleType):
    """W&B as far as it is used: it keeps what it is given, by run id."""

    Error = type("Error", (Exception,), {})

    def __init__(self, *, refuses: str = "") -> None:
        super().__init__("wandb")
        self.refuses = refuses
        self.started: list[dict[str, Any]] = []
        self.axes: list[tuple[str, str | None]] = []
        self.rows: list[dict[str, Any]] = []
        self.ended: list[int] = []

    def init(
        self, *, project: str, name: str, id: str, resume: str, dir: str, config: dict[str, Any]
    ) -> "FakeWandb":
        if self.refuses:
            raise self.Error(self.refuses)
        self.started.append(dict(locals()))
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, data: dict[str, Any]) -> None:
        self.rows.append(data)

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)
