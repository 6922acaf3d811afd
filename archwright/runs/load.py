"""A run opened for use: its spec, its model with trained weights, and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archwright import checkpoint
from archwright.runs.folder import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from archwright.model.language_model import LanguageModel
    from archwright.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenRun:
    """A run's folder, spec, model and tokenizer."""

    folder: RunFolder
    spec: RunSpec
    model: LanguageModel
    tokenizer: Tokenizer


def open_run(path: str | Path) -> OpenRun:
    """Return the run at `path`, with its final weights, or those of its newest checkpoint.

    Raises:
        UserError: no run there, or none with weights and a tokenizer yet.
    """
    from archwright.text.tokenizer import Tokenizer

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
