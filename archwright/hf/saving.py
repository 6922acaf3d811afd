"""Save a model as a Hugging Face folder."""

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

from archwright.checkpoint.started import drafted
from archwright.checkpoint.weights import read_tensors, write_tensors
from archwright.hf.exporting import as_computed, exportable
from archwright.hf.family import Family
from archwright.hf.loading import CAME_FROM, Origin, tensors_of
from archwright.hf.older_readers import difference
from archwright.hf.weight_map import Slot
from archwright.hf.weights_reader import INDEX
from archwright.model.build import detector_of
from archwright.model.model import Decoder
from archwright.model.replaced_tokens import ReplacedTokenDetector
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.text.companions import DECODER_START, GENERATION, TOKEN_IDS, as_text, table
from archwright.text.tokenizer import PAD, Tokenizer

SHARD = 5 * 10**9
"""Maximum bytes of tensors per file; a larger tensor gets a separate file."""


def save(
    model: Decoder,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    family: str = "",
    max_shard_bytes: int = SHARD,
) -> str:
    """Write a model as a folder for `transformers`; return the `model_type`.

    The folder gets config.json, generation_config.json, safetensors files in the dtype of the model, and the files of
    the tokenizer. It is written atomically. A folder with the same export stays unchanged. A generator is omitted with
    a warning, as in Clark et al. (2020, ELECTRA, section 2).

    Args:
        family: `model_type` of the family. Default: the family that the model was loaded from, or the first
            family with all of the model's choices.
        max_shard_bytes: Maximum bytes of tensors per file.

    Raises:
        UserError: No published family has all of the model's choices, or the folder is not empty.
    """
    folder = Path(folder)
    if isinstance(model, ReplacedTokenDetector):
        line = f"{folder}: only the replaced-token detector is saved, without its generator"
        warnings.warn(line, stacklevel=2)
        origin, model = _came_from(model), detector_of(model)
        CAME_FROM[model] = origin
    chosen = exportable(model.spec, family or _came_from(model).family)
    if tokenizer is not None:
        tokenizer = _exported(model, tokenizer)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not _is_export(folder, model, chosen, tokenizer, max_shard_bytes):
            raise UserError(f"{folder}: not empty; expected a new or empty folder")
        return chosen.model_type
    if not folder.name:
        raise UserError(f"{folder}: expected the name of a new folder")
    if problem := difference(config_of(model.spec, chosen)):
        line = f"{folder}: transformers 4.57 {problem}; transformers 5 reads it correctly"
        warnings.warn(line, stacklevel=2)
    with drafted(folder) as draft:
        tensors = tensors_of(model)
        slots, split = chosen.slots(model.spec, tensors), _split(model, chosen, max_shard_bytes)
        for file, names in split.filename_to_tensors.items():
            foreign = {name: _foreign(slots[name], tensors) for name in names}
            write_tensors(draft / file, foreign, {"format": "pt"})
        _write_small_files(model, chosen, split, draft, tokenizer)
    return chosen.model_type


def _is_export(
    folder: Path, model: Decoder, family: Family, tokenizer: Tokenizer | None, most: int
) -> bool:
    """True if a folder contains exactly this export, compared value by value."""
    if not folder.is_dir():
        return False
    split = _split(model, family, most)
    with tempfile.TemporaryDirectory() as scratch:
        _write_small_files(model, family, split, Path(scratch), tokenizer)
        written = [path for path in Path(scratch).rglob("*") if path.is_file()]
        small = {path.relative_to(scratch): path.read_bytes() for path in written}
    names = {path.name for path in folder.iterdir()}
    if names != {name.parts[0] for name in small} | split.filename_to_tensors.keys():
        return False
    tensors = tensors_of(model)
    slots = family.slots(model.spec, tensors)
    return all(
        (folder / name).is_file() and _has_content(folder / name, content)
        for name, content in small.items()
    ) and all(
        _has_tensors(folder / file, {name: slots[name] for name in shard}, tensors)
        for file, shard in split.filename_to_tensors.items()
    )


def _has_content(file: Path, content: bytes) -> bool:
    """True if a file has this content; JSON keys may be reordered."""
    stored = file.read_bytes()
    if stored == content or file.suffix != ".json":
        return stored == content
    try:
        return bool(json.loads(stored) == json.loads(content))
    except (ValueError, RecursionError):
        return False


def _has_tensors(file: Path, shard: Mapping[str, Slot], tensors: Mapping[str, Tensor]) -> bool:
    """True if a file contains exactly these tensors."""
    try:
        stored, _ = read_tensors(file)
    except UserError:
        return False
    return stored.keys() == shard.keys() and all(
        stored[name].dtype == (expected := _foreign(slot, tensors)).dtype
        and torch.equal(stored[name], expected)
        for name, slot in shard.items()
    )


def _write_small_files(
    model: Decoder,
    family: Family,
    split: StateDictSplit,
    folder: Path,
    tokenizer: Tokenizer | None,
) -> None:
    """Write all files except the weights, including the index of shards."""
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
        (folder / TOKEN_IDS).unlink(missing_ok=True)  # config.json contains these ids


def _came_from(model: Decoder) -> Origin:
    return CAME_FROM.get(model, Origin("", {}))


def _split(model: Decoder, family: Family, most: int) -> StateDictSplit:
    """Distribute tensors among files by size."""
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
    """Return the dtype of a checkpoint tensor: the dtype of its tensors in the model."""
    name = slot.ours[0] if slot.ours else next(iter(tensors))
    return tensors[name].dtype


def config_of(spec: ModelSpec, family: Family) -> dict[str, Any]:
    """Return the config.json of a resolved spec in a family."""
    config = family.config(as_computed(spec))
    padding, rows = family.defaults.get("pad_token_id"), spec.vocab_size
    if padding is not None and rows != "auto" and padding >= rows:
        config.setdefault("pad_token_id", None)  # the default of the class is out of range
    return config


def _exported(model: Decoder, tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer to write; warn about differences in other libraries."""
    rows, has_source = model.spec.vocab_size, model.spec.encoder_model is not None
    assert rows != "auto"
    exported = tokenizer.exported(rows, model.spec.context_length, has_source=has_source)
    if line := exported.otherwise(exported.around, has_source=has_source):
        warnings.warn(f"tokenizer.json: {line}", stacklevel=3)
    if exported is not tokenizer and PAD not in exported.special_ids:
        warnings.warn(
            f"tokenizer_config.json: pad_token is {exported.end_of_text_name}, because the vocabulary has gaps or no "
            "spare row; collators mask it, so that fine-tuning does not learn to end a text",
            stacklevel=3,
        )
    return exported


def _files(tokenizer: Tokenizer, has_source: bool) -> dict[str, str]:
    """Return the text of each file saved next to a tokenizer, by file name. Missing token ids are filled in."""
    ids = {"bos_token_id": tokenizer.begin_of_text, "eos_token_id": tokenizer.end_of_text}
    if has_source:
        ids[DECODER_START] = tokenizer.decoder_start[0]
    files = tokenizer.files
    added = {TOKEN_IDS: as_text(ids | table(files, TOKEN_IDS))}
    if GENERATION not in files:
        added[GENERATION] = as_text({"_from_model_config": True, **table(added, TOKEN_IDS)})
    return {**files, **added}


def _write_json(path: Path, table: Mapping[str, object]) -> None:
    path.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
