"""Opening of a run: spec, trained model and tokenizer."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archwright import checkpoint
from archwright.format import decimal
from archwright.notebook import Report, html_table
from archwright.runs.folder import RunFolder
from archwright.spec.errors import UserError, nearest
from archwright.spec.run_spec import RunSpec

if TYPE_CHECKING:
    import torch

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


PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Short names, as of `machine.precision`, -> dtypes of weights."""
DTYPES = tuple(PRECISIONS.values())


def open_run(path: Run, *, device: str | None = None, dtype: str | None = None) -> OpenRun:
    """Open the run at `path` with its final weights or its newest checkpoint.

    Args:
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: CUDA if it is available. Default: `cpu`, or the device of an
            open run. An open run with another device or dtype is copied.
        dtype: `float32`, `bfloat16` or `float16`: dtype of the weights. Default: `float32`, or the dtype of an open
            run. Buffers stay in float32.

    Raises:
        UserError: no run at `path`, a run without weights or tokenizer, or an unusable device.
    """
    from archwright.text.tokenizer import Tokenizer

    if isinstance(path, OpenRun):
        first = next(path.model.parameters())
        place = first.device if device is None else usable_device(device)
        kind = first.dtype if dtype is None else dtype_of(dtype)
        if (first.device, first.dtype) == (place, kind):
            return path
        model = copy.deepcopy(path.model).to(place)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(kind)
        return replace(path, model=model.use_kernel("blockwise" if place.type == "cpu" else "sdpa"))
    chosen = usable_device(device or "cpu"), dtype_of(dtype or "float32")
    folder = RunFolder.open(path)
    file = _weights(folder)
    tokenizer = Tokenizer.load(folder.tokenizer_folder)
    model = _filled(folder, file, tokenizer.vocab_size, *chosen)
    return OpenRun(folder, folder.spec, model, tokenizer)


def usable_device(name: str) -> torch.device:
    """Return a device by name; `auto` is CUDA if it is available.

    Raises:
        UserError: The device is unknown or not available.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        hint = nearest("cuda" if kind == "gpu" else kind, ("auto", "cpu", "cuda"))
        raise UserError(f'device: found "{name}"; expected auto, cpu, cuda or cuda:N.{hint}')
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(
            f'device: found "{name}"; expected "cpu" or "auto", as this CUDA device is not available here'
        )
    return torch.device(kind, int(number or 0)) if kind == "cuda" else torch.device(kind)


def dtype_of(name: str) -> torch.dtype:
    """Return a dtype of weights by its name or short name.

    Raises:
        UserError: The name is none of `DTYPES`.
    """
    import torch

    name = PRECISIONS.get(name, name)
    if name not in DTYPES:
        raise UserError(
            f'dtype: found "{name}"; expected {", ".join(DTYPES[:-1])} or {DTYPES[-1]}.{nearest(name, DTYPES)}'
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


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


def _filled(
    folder: RunFolder,
    file: Path,
    vocab_size: int | None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Decoder:
    import torch

    from archwright.model.build import build_uninitialized

    spec = folder.spec.model.resolved(vocab_size)
    model = build_uninitialized(spec, device=device, dtype=dtype or torch.float32)
    _, new = checkpoint.take_weights(model, checkpoint.read_model(file))
    if new:
        raise UserError(f"{file}: tensors are missing: {', '.join(new)}")
    return model.eval()
