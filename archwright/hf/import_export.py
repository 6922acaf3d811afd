"""Between foreign folders and run folders."""

from __future__ import annotations

from pathlib import Path

import torch

from archwright import checkpoint
from archwright.hf.families import FAMILIES
from archwright.hf.loading import CAME_FROM, Origin, load
from archwright.hf.saving import save
from archwright.model.language_model import LanguageModel
from archwright.runs.folder import RunFolder
from archwright.runs.load import open_model
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.text.companions import GENERATION, TOKEN_IDS
from archwright.text.tokenizer import Tokenizer

FAMILY = "family"
"""Where the file of an imported model says which family it came from."""
OF_MODEL = (GENERATION, TOKEN_IDS)
"""Companion files that a model without a tokenizer keeps itself."""


def import_run(folder: str | Path, out: str | Path) -> tuple[RunFolder, LanguageModel]:
    """Make a run folder of a foreign one: its spec, its weights in the dtype that they have, its tokenizer;
    return it with the model. A run folder that holds just that already is left as it is.

    Raises:
        UserError: what `load` refuses, or a folder that holds something else; nothing is then left behind.
    """
    path = Path(out)
    loaded = load(folder, dtype="stored")
    source = (
        f"{Path(folder).resolve().name}, a {FAMILIES[loaded.family].architecture_of(loaded.spec)}"
    )
    model = loaded.spec.model_copy(update={"source": source, "name": path.name})
    there = RunFolder(path)
    if there.started and (there.finished or not there.starting):
        if not _is_same(there, model, loaded.model):
            raise UserError(f"{path} holds a run already; give --out a new folder")
        return there, loaded.model
    run = RunFolder.create(path, RunSpec(name=path.name, model=model))
    with run.lock(), run.removed_unless_started():
        run.start_over(run.model_file, run.metrics_file)
        if loaded.tokenizer is not None:
            run.write_tokenizer(loaded.tokenizer)
        metadata = {"archwright": "model", "spec": model.hash(), FAMILY: loaded.family}
        if loaded.tokenizer is None:  # whose files these are where there is one
            metadata |= {
                name: text
                for name, text in CAME_FROM[loaded.model].files.items()
                if name in OF_MODEL
            }
        checkpoint.write_model(run.model_file, loaded.model, metadata)
        done = {"name": "finished", "text": f"imported from {source}", "seconds": 0.0}
        run.append({"kind": "event", "step": 0, **done})
    return run, loaded.model


def export_run(run: str | Path, folder: str | Path, family: str = "") -> str:
    """Write the model of a run as a foreign folder; return the family it was written as: the given one, that
    which an import came from, or the first that has all of the model's choices.

    Raises:
        UserError: no such run, or what `save` refuses.
    """
    model, opened = open_model(run), RunFolder.open(run)
    tokenizer = opened.tokenizer_folder
    there = opened.model_file.is_file()
    metadata = checkpoint.read_metadata(opened.model_file) if there else {}
    files = {name: metadata[name] for name in OF_MODEL if name in metadata}
    CAME_FROM[model] = Origin(metadata.get(FAMILY, ""), files)
    return save(
        model, folder, Tokenizer.load(tokenizer) if tokenizer.is_dir() else None, family=family
    )


def _is_same(run: RunFolder, spec: ModelSpec, model: LanguageModel) -> bool:
    """Tell whether a run is an import of this very model, its weights equal bit for bit."""
    if not (run.finished and run.model_file.is_file() and run.spec.model.hash() == spec.hash()):
        return False
    saved, own = checkpoint.read_model(run.model_file), model.state_dict()
    return saved.keys() == own.keys() and all(
        saved[name].dtype == own[name].dtype and torch.equal(saved[name], own[name]) for name in own
    )
