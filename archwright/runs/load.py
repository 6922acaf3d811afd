"""Opening of a run: spec, trained model and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archwright import checkpoint
from archwright.format import decimal
from archwright.notebook import Report, html_table
from archwright.runs.folder import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from archwright.model.model import Decoder
    from archwright.runs.columns import RunHistory
    from archwright.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenRun:
    """A run's folder, spec, model and tokenizer."""

    folder: RunFolder
    spec: RunSpec
    model: Decoder
    tokenizer: Tokenizer

    def history(self) -> RunHistory:
        """Return the run's metrics as columns: `run.history()["loss"]`."""
        from archwright.runs.columns import RunHistory

        return RunHistory.from_records(self.folder.metrics())

    def report(self, *, inline: bool = False) -> Report:
        """Return the run's page: a display in notebooks, a path elsewhere.

        With `inline`, a notebook stores the page (several MB) instead of a link.

        Raises:
            UserError: the run has no page yet.
        """
        file = self.folder.report_file
        if not file.is_file():
            raise UserError(
                f"{self.folder.path} has no page; archwright.write_report(run.folder) writes it"
            )
        return Report(file, inline=inline)

    def __repr__(self) -> str:
        return f"OpenRun({self.folder.path}: {', '.join(f'{k} {v}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks, followed by the run's spec."""
        table = html_table(f"run {self.folder.path}", ("property", "value"), self._facts().items())
        return table + self.spec._repr_html_()

    def _facts(self) -> dict[str, str]:
        """Return the run's state, steps, tokens and last held-out loss."""
        history = self.history()
        facts = {"state": "finished" if self.folder.finished else "not finished"}
        facts["steps"] = f"{history['step'].max(initial=0):,}"
        facts["tokens"] = f"{history['tokens'].max(initial=0):,}"
        if len(losses := history.evaluations["held_out_loss"]):
            facts["held-out loss"] = decimal(losses[-1], 4)
        return facts


Run = OpenRun | str | Path
"""An open run, or the path of its folder."""


def open_run(path: Run) -> OpenRun:
    """Open the run at `path` with its final weights or its newest checkpoint.

    Raises:
        UserError: no run at `path`, or a run without weights or tokenizer.
    """
    from archwright.text.tokenizer import Tokenizer

    if isinstance(path, OpenRun):
        return path
    folder = RunFolder.open(path)
    file = _weights(folder)
    tokenizer = Tokenizer.load(folder.tokenizer_folder)
    return OpenRun(folder, folder.spec, _filled(folder, file, tokenizer.vocab_size), tokenizer)


def open_model(path: str | Path) -> Decoder:
    """Return the model of the run at `path`; no tokenizer is required.

    Raises:
        UserError: no run at `path`, or a run without weights.
    """
    folder = RunFolder.open(path)
    return _filled(folder, _weights(folder), None)


def _weights(folder: RunFolder) -> Path:
    """Return the file of a run's final weights, or of its newest checkpoint's."""
    if folder.model_file.is_file():
        return folder.model_file
    saved = checkpoint.latest(folder.checkpoints_folder)
    if saved is None:
        raise UserError(f"{folder.path} has no weights yet: train it first with --resume")
    return saved / "model.safetensors"


def _filled(folder: RunFolder, file: Path, vocab_size: int | None) -> Decoder:
    from archwright.model.build import build_uninitialized

    model = build_uninitialized(folder.spec.model.resolved(vocab_size))
    _, new = checkpoint.take_weights(model, checkpoint.read_model(file))
    if new:
        raise UserError(f"{file}: tensors are missing: {', '.join(new)}")
    return model.eval()
