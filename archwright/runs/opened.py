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
    from archwright.model.decoder import Decoder
    from archwright.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenRun:
    """A run's folder, spec, model and tokenizer."""

    folder: RunFolder
    spec: RunSpec
    model: Decoder
    tokenizer: Tokenizer


def open_run(path: str | Path) -> OpenRun:
    """Return the run at `path`, with its final weights, or those of its newest checkpoint.

    Raises:
        UserError: no run there, or none with weights yet.
    """
    from archwright.model.build import build
    from archwright.text.tokenizer import Tokenizer

    folder = RunFolder.open(path)
    file = folder.model_file
    if not file.is_file():
        saved = checkpoint.latest(folder.checkpoints_folder)
        if saved is None:
            raise UserError(f"{folder.path} has no weights yet: train it first with --resume")
        file = saved / "model.safetensors"
    spec = folder.spec
    tokenizer = Tokenizer.load(folder.tokenizer_folder)
    model = build(spec.model, vocab_size=tokenizer.vocab_size)
    _, new = checkpoint.take_weights(model, checkpoint.read_model(file))
    if new:
        raise UserError(f"{file}: tensors are missing: {', '.join(new)}")
    model.eval()
    return OpenRun(folder, spec, model, tokenizer)
