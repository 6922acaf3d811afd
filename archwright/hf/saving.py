"""From a model to a folder that the ecosystem opens."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import StateDictSplit, split_state_dict_into_shards_factory
from torch import Tensor

from archwright.checkpoint.started import StartRecord, drafted
from archwright.checkpoint.weights import read_tensors, write_tensors
from archwright.hf.exporting import as_computed, exportable
from archwright.hf.family import Family
from archwright.hf.loading import CAME_FROM, Origin, tensors_of
from archwright.hf.older_readers import difference
from archwright.hf.weight_map import Slot
from archwright.hf.weights_reader import INDEX
from archwright.model.build import detector_of
from archwright.model.language_model import LanguageModel
from archwright.model.replaced_tokens import ReplacedTokenDetector
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.text.companions import DECODER_START, GENERATION, TOKEN_IDS, as_text, table
from archwright.text.tokenizer import PAD, Tokenizer

SHARD = 5 * 10**9
"""Bytes of tensors in one file at most, as one that is larger stands alone."""


def save(
    model: LanguageModel,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    family: str = "",
    max_shard_bytes: int = SHARD,
) -> str:
    """Write a model as a folder that `transformers` loads, and return the family it was written as.

    config.json, generation_config.json, safetensors and, if one is given, the tokenizer's files; tensors keep
    their dtype. The folder appears whole or not at all; one that holds just that already is left as it is. A generator
    is left aside, as after its training (Clark et al., 2020, ELECTRA, section 2), and a warning says so.

    Args:
        family: which one, where several have all of the model's choices; by default the one that the model
            was read as, or the first.

    Raises:
        UserError: no published family has all of the model's choices (the line says which ones block it), or
            the folder is not empty.
    """
    folder = Path(folder)
    if isinstance(model, ReplacedTokenDetector):
        line = f"{folder}: what finds replaced tokens is written alone; left aside: its generator"
        warnings.warn(line, stacklevel=2)
        origin, model = _came_from(model), detector_of(model)
        CAME_FROM[model] = origin
    chosen = exportable(model.spec, family or _came_from(model).family)
    if tokenizer is not None:
        tokenizer = _exported(model, tokenizer)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not _is_export(folder, model, chosen, tokenizer, max_shard_bytes):
            raise UserError(f"{folder}: not empty; expected a new or empty folder")
        StartRecord(folder).finish()  # where a process was killed right after the folder was whole
        return chosen.model_type
    if not folder.name:
        raise UserError(f"{folder}: expected the name of a new folder")
    if words := difference(config_of(model.spec, chosen)):
        line = f"{folder}: transformers 4.57 {words}; transformers 5 reads it as it is"
        warnings.warn(line, stacklevel=2)
    with drafted(folder, "export") as draft:
        tensors = tensors_of(model)
        slots, split = chosen.slots(model.spec, tensors), _split(model, chosen, max_shard_bytes)
        for file, names in split.filename_to_tensors.items():
            foreign = {name: _foreign(slots[name], tensors) for name in names}
            write_tensors(draft / file, foreign, {"format": "pt"})
        _write_small_files(model, chosen, split, draft, tokenizer)
    return chosen.model_type


def _is_export(
    folder: Path, model: LanguageModel, family: Family, tokenizer: Tokenizer | None, most: int
) -> bool:
    """Tell whether `folder` holds what would be written into it, value by value, and nothing else."""
    if not folder.is_dir():
        return False
    started = StartRecord(folder)
    there = started.others() if started.names is not None else [p.name for p in folder.iterdir()]
    split = _split(model, family, most)
    with tempfile.TemporaryDirectory() as scratch:
        _write_small_files(model, family, split, Path(scratch), tokenizer)
        written = [path for path in Path(scratch).rglob("*") if path.is_file()]
        small = {path.relative_to(scratch): path.read_bytes() for path in written}
    if {*there} != {name.parts[0] for name in small} | split.filename_to_tensors.keys():
        return False
    tensors = tensors_of(model)
    slots = family.slots(model.spec, tensors)
    return all(
        (folder / name).is_file() and _says(folder / name, content)
        for name, content in small.items()
    ) and all(
        _holds(folder / file, {name: slots[name] for name in names}, tensors)
        for file, names in split.filename_to_tensors.items()
    )


def _says(file: Path, content: bytes) -> bool:
    """Tell whether a file has this content; keys of JSON may stand in another order."""
    found = file.read_bytes()
    if found == content or file.suffix != ".json":
        return found == content
    try:
        return bool(json.loads(found) == json.loads(content))
    except (ValueError, RecursionError):
        return False


def _holds(file: Path, shard: Mapping[str, Slot], tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether a file holds exactly these tensors."""
    try:
        found, _ = read_tensors(file)
    except UserError:
        return False
    return found.keys() == shard.keys() and all(
        found[name].dtype == (wanted := _foreign(slot, tensors)).dtype
        and torch.equal(found[name], wanted)
        for name, slot in shard.items()
    )


def _write_small_files(
    model: LanguageModel,
    family: Family,
    split: StateDictSplit,
    folder: Path,
    tokenizer: Tokenizer | None,
) -> None:
    """Write all but the weights: of several files of these, which one holds which tensor."""
    if split.is_sharded:
        weight_map = dict(sorted(split.tensor_to_filename.items()))
        _write_json(folder / INDEX, {"metadata": split.metadata, "weight_map": weight_map})
    has_source = model.spec.encoder_model is not None
    files = _came_from(model).files if tokenizer is None else _files(tokenizer, has_source)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config = config_of(model.spec, family) | {"dtype": dtype, "torch_dtype": dtype}
    _write_json(folder / "config.json", config | table(files, TOKEN_IDS))
    (folder / GENERATION).write_text(files.get(GENERATION, "{}\n"), "utf-8")
    if tokenizer is not None:
        tokenizer.save(folder)
        (folder / TOKEN_IDS).unlink(missing_ok=True)  # which stand in config.json


def _came_from(model: LanguageModel) -> Origin:
    return CAME_FROM.get(model, Origin("", {}))


def _split(model: LanguageModel, family: Family, most: int) -> StateDictSplit:
    """Return which file holds which tensors, by their sizes alone."""
    tensors = tensors_of(model)

    def num_bytes(slot: Slot) -> int:
        return torch.Size(slot.shape(tensors)).numel() * _dtype(slot, tensors).itemsize

    return split_state_dict_into_shards_factory(
        family.slots(model.spec, tensors),
        get_storage_size=num_bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=most,
    )


def _foreign(slot: Slot, tensors: Mapping[str, Tensor]) -> Tensor:
    with torch.no_grad():
        foreign = torch.zeros(slot.shape(tensors), dtype=_dtype(slot, tensors))
        slot.write(foreign, tensors)
    return foreign


def _dtype(slot: Slot, tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the dtype of a foreign tensor: of ours in it, or of the model."""
    own = slot.ours[0] if slot.ours else next(iter(tensors))
    return tensors[own].dtype


def config_of(spec: ModelSpec, family: Family) -> dict[str, Any]:
    """Return the config of a resolved spec as a family says it."""
    config = family.config(as_computed(spec))
    padding, rows = family.defaults.get("pad_token_id"), spec.vocab_size
    if padding is not None and rows != "auto" and padding >= rows:
        config.setdefault("pad_token_id", None)  # the class's own does not exist here
    return config


def _exported(model: LanguageModel, tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer to write; a line says where other libraries read otherwise than training."""
    rows, has_source = model.spec.vocab_size, model.spec.encoder_model is not None
    assert rows != "auto"
    found = tokenizer.exported(rows, model.spec.context_length, has_source=has_source)
    if line := found.otherwise(found.around, has_source=has_source):
        warnings.warn(f"tokenizer.json: {line}", stacklevel=3)
    if found is not tokenizer and PAD not in found.special_ids:
        warnings.warn(
            f"tokenizer_config.json: pad_token is {found.end_of_text_name}, as the vocabulary has gaps or no spare "
            "row: collators mask it, so that fine-tuning does not learn where a text ends",
            stacklevel=3,
        )
    return found


def _files(tokenizer: Tokenizer, has_source: bool) -> dict[str, str]:
    """Return what stands beside a tokenizer, with the ids that it has where no file says any."""
    own = {"bos_token_id": tokenizer.begin_of_text, "eos_token_id": tokenizer.end_of_text}
    if has_source:
        own[DECODER_START] = tokenizer.decoder_start[0]
    files = tokenizer.files
    found = {TOKEN_IDS: as_text(own | table(files, TOKEN_IDS))}
    if GENERATION not in files:
        found[GENERATION] = as_text({"_from_model_config": True, **table(found, TOKEN_IDS)})
    return {**files, **found}


def _write_json(path: Path, table: Mapping[str, object]) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
