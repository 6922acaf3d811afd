"""Between foreign folders and run folders."""

from __future__ import annotations

from pathlib import Path

import torch

from archwright import checkpoint
from archwright.hf.families import FAMILIES
from archwright.hf.loading import load
from archwright.hf.saving import save
from archwright.model.decoder import Decoder
from archwright.runs.folder import RunFolder
from archwright.runs.opened import open_model
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.text.tokenizer import Tokenizer

FAMILY = "family"
"""Where the file of an imported model says which family it came from."""


def import_run(folder: str | Path, out: str | Path) -> tuple[RunFolder, Decoder]:
    """Make a run folder of a foreign one: its spec, its weights in the dtype that they have, its tokenizer;
    return it with the model. A run folder that holds just that already is left as it is.

    Raises:
        UserError: what `load` refuses, or a folder that holds something else; nothing is then left behind.
    """
    loaded = load(folder, dtype="stored")
    path = Path(out)
    source = f"{Path(folder).resolve().name}, a {FAMILIES[loaded.family].architecture}"
    model = loaded.spec.model_copy(update={"source": source, "name": path.name})
    run = RunFolder.create(path, RunSpec(name=path.name, model=model))
    if run.metrics() or run.settled or run.checkpoints():
        if not (run.finished and _is_same(run, loaded.model)):
            raise UserError(f"{path} holds a run already; give --out a new folder")
        return run, loaded.model
    with run.lock(), run.nothing_or_begun():
        if loaded.tokenizer is not None:
            run.write_tokenizer(loaded.tokenizer)
        told = {"archwright": "model", "spec": model.hash(), FAMILY: loaded.family}
        checkpoint.write_model(run.model_file, loaded.model, told)
        done = {"name": "finished", "text": f"imported from {source}", "seconds": 0.0}
        run.append({"kind": "event", "step": 0, **done})
    return run, loaded.model


def export_run(run: str | Path, folder: str | Path, family: str = "") -> str:
    """Write the model of a run as a foreign folder; return the family it was written as: the given one, that
    which an import came from, or the first that has all of the model's choices.

    Raises:
        UserError: no such run, or what `save` refuses.
    """
    model = open_model(run)
    tokenizer = RunFolder.open(run).tokenizer_folder
    return save(
        model,
        folder,
        Tokenizer.load(tokenizer) if tokenizer.is_dir() else None,
        family=family or _came_from(RunFolder(run)),
    )


def _is_same(run: RunFolder, model: Decoder) -> bool:
    """Tell whether a run's weights are those of a model, bit for bit."""
    if not run.model_file.is_file():
        return False
    saved, own = checkpoint.read_model(run.model_file), model.state_dict()
    return saved.keys() == own.keys() and all(
        saved[name].dtype == own[name].dtype and torch.equal(saved[name], own[name]) for name in own
    )


def _came_from(run: RunFolder) -> str:
    """Return the family that a run was imported from, if it was."""
    there = run.model_file.is_file()
    return checkpoint.read_metadata(run.model_file).get(FAMILY, "") if there else ""
