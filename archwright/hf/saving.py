"""From a model to a folder that the ecosystem opens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archwright.checkpoint.disk import clear_errors
from archwright.checkpoint.weights import write_tensors
from archwright.hf.exporting import exportable
from archwright.hf.family import Family
from archwright.hf.keys import Slot
from archwright.hf.loading import CAME_FROM, Origin, tensors_of
from archwright.hf.store import INDEX, WEIGHTS
from archwright.model.decoder import Decoder
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.text.companions import GENERATION, TOKEN_IDS, as_text, table
from archwright.text.tokenizer import Tokenizer

SHARD = 5 * 10**9
"""Bytes of tensors in one file at most, as one that is larger stands alone."""


def save(
    model: Decoder,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    family: str = "",
    max_shard_bytes: int = SHARD,
) -> str:
    """Write a model as a folder that `transformers` loads, and return the family it was written as.

    config.json, generation_config.json, safetensors and, if one is given, the tokenizer's files; tensors keep
    their dtype. The folder appears whole or not at all.

    Args:
        family: which one, where several have all of the model's choices; by default the one that the model
            was read as, or the first.

    Raises:
        UserError: no published family has all of the model's choices (the line says which ones block it), or
            the folder is not empty.
    """
    folder = Path(folder)
    came_from = CAME_FROM.get(model, Origin("", {}))
    chosen = exportable(model.spec, family or came_from.family)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: not empty; expected a new or empty folder")
    with _whole(folder) as draft:
        _write_weights(model, chosen, draft, max_shard_bytes)
        files = came_from.files if tokenizer is None else _files(tokenizer)
        _write_json(draft / "config.json", _config(model, chosen) | table(files, TOKEN_IDS))
        (draft / GENERATION).write_text(files.get(GENERATION, "{}\n"), "utf-8")
        if tokenizer is not None:
            tokenizer.save(draft)
            (draft / TOKEN_IDS).unlink(missing_ok=True)  # which stand in config.json
    return chosen.model_type


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder` that takes its place at the end; nothing is left of it on an error."""
    draft = folder.parent / f".{folder.name}.tmp"
    with clear_errors(folder):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            yield draft
            if folder.exists():
                folder.rmdir()
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _write_weights(model: Decoder, family: Family, folder: Path, most: int) -> None:
    tensors = tensors_of(model)
    shards = _shards(family.slots(model.spec, tensors), tensors, most)
    total, names = 0, dict[str, str]()
    for i, shard in enumerate(shards):
        file = WEIGHTS if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        foreign = {name: _foreign(slot, tensors) for name, slot in shard.items()}
        write_tensors(folder / file, foreign, {"format": "pt"})
        total += sum(tensor.nbytes for tensor in foreign.values())
        names |= dict.fromkeys(foreign, file)
    if len(shards) > 1:
        table = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        _write_json(folder / INDEX, table)


def _shards(
    slots: Mapping[str, Slot], tensors: Mapping[str, Tensor], most: int
) -> list[dict[str, Slot]]:
    """Cut the tensors into files, in order."""
    shards: list[dict[str, Slot]] = [{}]
    size = 0
    for name, slot in slots.items():
        own = torch.Size(slot.shape(tensors)).numel() * _dtype(slot, tensors).itemsize
        if shards[-1] and size + own > most:
            shards.append({})
            size = 0
        shards[-1][name] = slot
        size += own
    return shards


def _foreign(slot: Slot, tensors: Mapping[str, Tensor]) -> Tensor:
    with torch.no_grad():
        foreign = torch.zeros(slot.shape(tensors), dtype=_dtype(slot, tensors))
        slot.write(foreign, tensors)
    return foreign


def _dtype(slot: Slot, tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the dtype of a foreign tensor: of ours in it, or of the model."""
    own = slot.ours[0] if slot.ours else next(iter(tensors))
    return tensors[own].dtype


def _config(model: Decoder, family: Family) -> dict[str, Any]:
    """Return config.json of a model, without the ids of tokens."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return config_of(model.spec, family) | {"dtype": dtype, "torch_dtype": dtype}


def config_of(spec: ModelSpec, family: Family) -> dict[str, Any]:
    """Return the config of a resolved spec as a family says it."""
    config = family.config(spec)
    padding, rows = family.defaults.get("pad_token_id"), spec.vocab_size
    if padding is not None and rows != "auto" and padding >= rows:
        config.setdefault("pad_token_id", None)  # the class's own does not exist here
    return config


def _files(tokenizer: Tokenizer) -> dict[str, str]:
    """Return what stands beside a tokenizer, with the ids that it has where no file says any."""
    own = {"bos_token_id": tokenizer.begin_of_text, "eos_token_id": tokenizer.end_of_text}
    files = tokenizer.files
    found = {TOKEN_IDS: as_text(own | table(files, TOKEN_IDS))}
    if GENERATION not in files:
        found[GENERATION] = as_text({"_from_model_config": True, **table(found, TOKEN_IDS)})
    return {**files, **found}


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
