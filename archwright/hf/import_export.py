"""Conversion between Hugging Face folders and run folders."""

from __future__ import annotations

from pathlib import Path

import torch

from archwright import checkpoint
from archwright.hf.configs import FILE
from archwright.hf.families import FAMILIES
from archwright.hf.loading import CAME_FROM, Origin, load
from archwright.hf.saving import save
from archwright.model.model import Decoder
from archwright.runs.folder import RunFolder
from archwright.runs.load import OpenRun, Run, dtype_of, open_model, open_run, usable_device
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.text.companions import GENERATION, TOKEN_IDS
from archwright.text.tokenizer import Tokenizer

FAMILY = "family"
"""Metadata key of a model file: the family of an imported model."""
OF_MODEL = (GENERATION, TOKEN_IDS)
"""Tokenizer files that are stored in the model file's metadata if there is no tokenizer."""


def import_run(folder: str | Path, out: str | Path) -> tuple[RunFolder, Decoder]:
    """Create a run folder from a Hugging Face folder; also return the model.

    Weights keep their stored dtype. An existing run folder with the same import stays unchanged.

    Raises:
        UserError: `load` rejects the folder, or `out` contains another run. No new folder remains.
    """
    path = Path(out)
    loaded = load(folder, dtype="stored")
    source = (
        f"{Path(folder).resolve().name}, a {FAMILIES[loaded.family].architecture_of(loaded.spec)}"
    )
    model = loaded.spec.model_copy(update={"source": source, "name": path.name})
    existing = RunFolder(path)
    if existing.started and (existing.finished or not existing.starting):
        if not _is_same(existing, model, loaded.model):
            raise UserError(f"{path} holds a run already; give --out a new folder")
        return existing, loaded.model
    run = RunFolder.create(path, RunSpec(name=path.name, model=model))
    with run.lock(), run.removed_unless_started():
        run.start_over(run.model_file, run.metrics_file)
        if loaded.tokenizer is not None:
            run.write_tokenizer(loaded.tokenizer)
        metadata = {"archwright": "model", "spec": model.hash(), FAMILY: loaded.family}
        if loaded.tokenizer is None:  # otherwise they are saved with the tokenizer
            metadata |= {
                name: text
                for name, text in CAME_FROM[loaded.model].files.items()
                if name in OF_MODEL
            }
        checkpoint.write_model(run.model_file, loaded.model, metadata)
        done = {"name": "finished", "text": f"imported from {source}", "seconds": 0.0}
        run.append({"kind": "event", "step": 0, **done})
    return run, loaded.model


def open_any(path: Run, *, device: str | None = None, dtype: str | None = None) -> OpenRun:
    """Open a run, or a Hugging Face folder as a run without a history. Nothing is written.

    Args:
        device: As in `open_run`.
        dtype: As in `open_run`.

    Raises:
        UserError: `open_run` or `load` rejects the folder, or a Hugging Face folder has no tokenizer.
    """
    if isinstance(path, OpenRun) or RunFolder(path).exists or not is_checkpoint(path):
        return open_run(path, device=device, dtype=dtype)
    loaded = load(path, dtype=dtype_of(dtype or "float32"), device=usable_device(device or "cpu"))
    if loaded.tokenizer is None:
        raise UserError(f"{path}: found no tokenizer; expected tokenizer.json in this folder")
    spec = RunSpec(name=loaded.spec.name, model=loaded.spec)
    return OpenRun(RunFolder(path), spec, loaded.model, loaded.tokenizer)


def is_checkpoint(path: str | Path) -> bool:
    """True if a path is a Hugging Face folder."""
    return (Path(path) / FILE).is_file()


def export_run(run: str | Path, folder: str | Path, family: str = "") -> str:
    """Write a run's model as a Hugging Face folder; return the family.

    The default family is the family of an imported model, or the first with all of the model's choices.

    Raises:
        UserError: The run does not exist, or `save` rejects the model or the folder.
    """
    model, opened = open_model(run), RunFolder.open(run)
    tokenizer = opened.tokenizer_folder
    has_weights = opened.model_file.is_file()
    metadata = checkpoint.read_metadata(opened.model_file) if has_weights else {}
    files = {name: metadata[name] for name in OF_MODEL if name in metadata}
    CAME_FROM[model] = Origin(metadata.get(FAMILY, ""), files)
    return save(
        model, folder, Tokenizer.load(tokenizer) if tokenizer.is_dir() else None, family=family
    )


def _is_same(run: RunFolder, spec: ModelSpec, model: Decoder) -> bool:
    """True if a run is a finished import of the same spec and weights."""
    if not (run.finished and run.model_file.is_file() and run.spec.model.hash() == spec.hash()):
        return False
    saved, state = checkpoint.read_model(run.model_file), model.state_dict()
    return saved.keys() == state.keys() and all(
        saved[n].dtype == x.dtype and torch.equal(saved[n], x) for n, x in state.items()
    )
