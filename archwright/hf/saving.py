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
from archwright.hf.loading import CAME_FROM, tensors_of
from archwright.hf.store import INDEX, WEIGHTS
from archwright.model.decoder import Decoder
from archwright.spec.errors import UserError
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
    chosen = exportable(model.spec, family or CAME_FROM.get(model, ""))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: not empty; expected a new or empty folder")
    with _whole(folder) as draft:
        _write_weights(model, chosen, draft, max_shard_bytes)
        _write_configs(model, chosen, draft, tokenizer)
        if tokenizer is not None:
            tokenizer.save(draft)
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


def _write_configs(
    model: Decoder, family: Family, folder: Path, tokenizer: Tokenizer | None
) -> None:
    config = family.config(model.spec)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config |= {"dtype": dtype, "torch_dtype": dtype}
    # Without a tokenizer no token is known to begin or end a text, and some classes' own do not exist here.
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    if tokenizer is not None:
        ids |= {"bos_token_id": tokenizer.begin_of_text, "eos_token_id": tokenizer.end_of_text}
    named = {key: config.get(key) if value is None else value for key, value in ids.items()}
    _write_json(folder / "config.json", config | named)
    told = {key: value for key, value in ids.items() if value is not None}
    _write_json(folder / "generation_config.json", {"_from_model_config": True} | told)


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
