"""A run opened for use: its spec, its model with trained weights, and its tokenizer."""

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
    from archwright.model.language_model import LanguageModel
    from archwright.runs.columns import RunHistory
    from archwright.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenRun:
    """A run's folder, spec, model and tokenizer."""

    folder: RunFolder
    spec: RunSpec
    model: LanguageModel
    tokenizer: Tokenizer

    def history(self) -> RunHistory:
        """Return what the run recorded so far, as columns: `run.history()["loss"]`."""
        from archwright.runs.columns import RunHistory

        return RunHistory.from_records(self.folder.metrics())

    def report(self, *, inline: bool = False) -> Report:
        """Return the run's page, which notebooks show, and which is the path of its file elsewhere.

        With `inline`, a notebook stores the page, several MB, in place of a link.

        Raises:
            UserError: there is none yet.
        """
        file = self.folder.report_file
        if not file.is_file():
            raise UserError(
                f"{self.folder.path} has no page; archwright.write_report(run.folder) makes one"
            )
        return Report(file, inline=inline)

    def __repr__(self) -> str:
        return f"OpenRun({self.folder.path}: {', '.join(f'{k} {v}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        """Return the same for notebooks, with the run's spec."""
        table = html_table(f"run {self.folder.path}", ("what", "value"), self._facts().items())
        return table + self.spec._repr_html_()

    def _facts(self) -> dict[str, str]:
        """Return what there is to know of the run at a glance."""
        history = self.history()
        found = {"state": "finished" if self.folder.finished else "not finished"}
        found["steps"] = f"{history['step'].max(initial=0):,}"
        found["tokens"] = f"{history['tokens'].max(initial=0):,}"
        if len(losses := history.evaluations["held_out_loss"]):
            found["held-out loss"] = decimal(losses[-1], 4)
        return found


Run = OpenRun | str | Path
"""An open run, or the path of its folder."""


def open_run(path: Run) -> OpenRun:
    """Return the run at `path`, with its final weights, or those of its newest checkpoint; an open run as it is.

    Raises:
        UserError: no run there, or none with weights and a tokenizer yet.
    """
    from archwright.text.tokenizer import Tokenizer

    if isinstance(path, OpenRun):
        return path
    folder = RunFolder.open(path)
    file = _weights(folder)
    tokenizer = Tokenizer.load(folder.tokenizer_folder)
    return OpenRun(folder, folder.spec, _filled(folder, file, tokenizer.vocab_size), tokenizer)


def open_model(path: str | Path) -> LanguageModel:
    """Return the model of the run at `path`, which may lack a tokenizer.

    Raises:
        UserError: no run there, or none with weights yet.
    """
    folder = RunFolder.open(path)
    return _filled(folder, _weights(folder), None)


def _weights(folder: RunFolder) -> Path:
    """Return the file of a run's final weights, or of those of its newest checkpoint."""
    if folder.model_file.is_file():
        return folder.model_file
    saved = checkpoint.latest(folder.checkpoints_folder)
    if saved is None:
        raise UserError(f"{folder.path} has no weights yet: train it first with --resume")
    return saved / "model.safetensors"


def _filled(folder: RunFolder, file: Path, vocab_size: int | None) -> LanguageModel:
    from archwright.model.build import build_uninitialized

    model = build_uninitialized(folder.spec.model.resolved(vocab_size))
    _, new = checkpoint.take_weights(model, checkpoint.read_model(file))
    if new:
        raise UserError(f"{file}: tensors are missing: {', '.join(new)}")
    return model.eval()
