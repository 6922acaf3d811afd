"""Load a model from a Hugging Face folder."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from archwright.hf.configs import FILE, family_of, read_config, spec_of, text_config
from archwright.hf.family import Family
from archwright.hf.multimodal import Wrapper
from archwright.hf.tokenizers import read_files, read_tokenizer
from archwright.hf.weight_map import Slot
from archwright.hf.weights_reader import Store, opened
from archwright.model.build import build_uninitialized
from archwright.model.model import Decoder
from archwright.progress import Progress
from archwright.spec.embeddings import NoSequenceHead, PooledHead
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import flatten
from archwright.text.companions import DECODER_START
from archwright.text.foreign import library_errors
from archwright.text.json_table import first_line
from archwright.text.tokenizer import Tokenizer

NAMED = 3
"""Maximum number of tensors named in a message."""
COPY = re.compile(r".*(?:decoder|generator_lm_head|vocab_projector|embed_tokens)\.(weight|bias)")
COPIES = {"weight": ("embedding.weight",), "bias": ("head.bias",)}
"""Tensors with duplicates in some files. `COPY` matches the names of duplicates; its group is the key."""
SIZES = re.compile(r"(\w+_)?(dim|rank)|vocab_size|num_(\w+_)?(heads|experts)")
"""Spec options limited by the size of the largest tensor."""


@dataclass(frozen=True)
class Origin:
    """Source of a loaded model, used when the model is saved."""

    family: str
    """`model_type` of the source; empty if unknown."""
    files: Mapping[str, str]
    """Text of the files next to the tokenizer, by name; see `archwright.text.companions`."""


CAME_FROM: WeakKeyDictionary[Decoder, Origin] = WeakKeyDictionary()


@dataclass(frozen=True)
class Loaded:
    """A model loaded from a Hugging Face folder."""

    model: Decoder
    spec: ModelSpec
    tokenizer: Tokenizer | None
    """Tokenizer of the folder; None if it has no supported one."""
    family: str
    """`model_type` of the text model."""


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | Literal["stored"] = torch.float32,
    device: torch.device | str = "cpu",
) -> Loaded:
    """Load the language model of a Hugging Face folder.

    The folder has config.json, safetensors (or old .bin) files, and optionally a tokenizer. Only the text model of a
    multimodal folder is loaded. No code of the folder is run. Shapes are checked before memory is allocated. Tensors
    are read one at a time: the peak memory is the model plus its largest tensor.

    Args:
        dtype: Dtype of the weights; "stored": the most frequent dtype in the files.
        device: Device of the weights.

    Raises:
        UserError: Something is missing, damaged or unsupported; a line per problem.
    """
    folder = Path(folder)
    full_config = read_config(folder)
    config, wrapper = text_config(full_config)
    family = family_of(config, str(folder / FILE))
    # The first token of a decoder, if the config omits it.
    start = family.defaults.get(DECODER_START) if family.encoder_layers else None
    files = read_files(folder, ({} if start is None else {DECODER_START: start}) | full_config)
    with opened(folder) as store:
        if wrapper is not None:
            store = _text_only(wrapper, store, folder)
            # The tables of a multimodal config may contradict each other about ties.
            config["tie_word_embeddings"] = "lm_head.weight" not in store.shapes
        family = family.as_stored(store.shapes)
        spec = spec_of(config, str(folder / FILE), folder.resolve().name)
        _check_sizes(spec, family, store, folder)
        spec = _with_stored_heads(spec, family, store)
        spec = _tied_as_stored(spec, family, store, folder)
        assert spec.vocab_size != "auto"
        names = _checked(family, spec, store, folder)
        with library_errors(f"{folder}: the tokenizer"):
            tokenizer = read_tokenizer(folder, spec.vocab_size, files)
        model = build_uninitialized(spec, device=device, dtype=_dtype(dtype, store))
        _fill(model, names, store)
    CAME_FROM[model] = Origin(family.model_type, files)
    return Loaded(model.eval(), spec, tokenizer, family.model_type)


load_model = load
"""Longer name of `load`."""


def _text_only(wrapper: Wrapper, store: Store, folder: Path) -> Store:
    """Return the tensors of the text model; warn about ignored models."""
    store, ignored = wrapper.tensors(store)
    if ignored:
        line = f"{folder}: only the text model is loaded; ignored: {', '.join(ignored)}"
        warnings.warn(line, stacklevel=3)
    return store


def _check_sizes(spec: ModelSpec, family: Family, store: Store, folder: Path) -> None:
    """Reject sizes too large for the files, before building a model."""
    file, count = folder / FILE, len(store.shapes)
    layers = sum(len(stack.of(spec)) for stack in family.stacks)
    if layers > count:
        raise UserError(f"{file}: found {layers:,} layers, but only {count} tensors")
    most = max(map(math.prod, store.shapes.values()))
    one_each = any("{e}" in name for name in family.layer_keys)
    tables = [spec, *spec.layers_by_kind.values()]
    for path, size in {k: v for t in tables for k, v in flatten(t.model_dump()).items()}.items():
        name = path.rpartition(".")[2]
        limit = min(most, count) if name == "num_experts" and one_each else most
        if SIZES.fullmatch(name) and isinstance(size, int) and size > limit:
            raise UserError(
                f"{file}: found {path} = {size:,}, but only {count:,} tensors with up to {most:,} numbers"
            )


def _shapes(spec: ModelSpec, folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a model by name, on the meta device."""
    try:
        return tensors_of(build_uninitialized(spec, device="meta"))
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # sizes past 64 bits
        raise UserError(f"{folder / FILE}: too large to be built: {first_line(error)}") from None


def _with_stored_heads(spec: ModelSpec, family: Family, store: Store) -> ModelSpec:
    """Add to a spec the heads that the files contain, and the logits bias if it is not zero."""
    in_file = dict(_aliases(family, store))
    bias = in_file.get(family.logits_bias)
    has_bias = bias is not None and bool(store.read(bias).any())
    sequence_head = PooledHead() if family.sequence_head in in_file else NoSequenceHead()
    return family.with_heads(spec, has_bias, sequence_head, family.replaced_head in in_file)


def _tied_as_stored(spec: ModelSpec, family: Family, store: Store, folder: Path) -> ModelSpec:
    """Untie the head if the file's head differs, despite the config (T5 v1.1)."""
    in_file = dict(_aliases(family, store))
    repeated = [in_file[name] for name in _repeated(family, spec) if name in in_file]
    if not repeated:
        return spec
    slots = family.slots(spec, _shapes(spec, folder))
    table = next(name for name, slot in slots.items() if slot.ours == ("embedding.weight",))
    pair = [name for name in (*repeated, in_file.get(table)) if name is not None]
    alike = len({store.shapes[name] for name in pair}) == 1
    if len(pair) < 2 or (alike and torch.equal(*(store.read(name) for name in pair))):
        return spec
    return family.tied(spec, tied=False)


def _checked(
    family: Family, spec: ModelSpec, store: Store, folder: Path
) -> dict[str, tuple[str, Slot]]:
    """Check names and shapes; return (stored name, slot) by name.

    Raises:
        UserError: Tensors are missing or unexpected, have a wrong shape, or differ from their duplicates.
    """
    tensors = _shapes(spec, folder)
    slots = family.slots(spec, tensors)
    in_file = dict(_aliases(family, store))
    lines = []
    if missing := [n for n, slot in slots.items() if n not in in_file and slot.ours]:
        lines.append(f"{folder}: {_few(missing)} missing")
    names = {*slots, *_repeated(family, spec)}
    if extra := [
        name for name in in_file if name not in names and not family.ignores(name, spec.num_layers)
    ]:
        lines.append(f"{folder}: {_few(extra)} not part of this {family.architecture_of(spec)}")
    for name, slot in slots.items():
        if name in in_file and not slot.fits(shape := store.shapes[in_file[name]], tensors):
            expected = list(slot.shape(tensors))
            lines.append(f"{folder}: {name}: found shape {list(shape)}; expected {expected}")
    lines += [] if lines else [f"{folder}: {line}" for line in _unlike_copies(family, slots, store)]
    if lines:
        rest = [f"{folder}: and {len(lines) - 8} more shapes"] if len(lines) > 8 else []
        raise UserError(*lines[:8], *rest)
    return {name: (in_file[name], slot) for name, slot in slots.items() if name in in_file}


def tensors_of(model: Decoder) -> dict[str, Tensor]:
    """Return the tensors of a model by name, without a tied head."""
    tensors = dict(model.state_dict())
    if model.spec.head.tied:
        tensors.pop("head.weight", None)
    return tensors


def _aliases(family: Family, store: Store) -> list[tuple[str, str]]:
    """Return (name in the family, stored name) of each tensor.

    Old suffixes are replaced, and a missing prefix is added. Several tensors may have the same name in the family."""
    pairs = [(name, name) for name in store.shapes]
    for old, new in family.endings.items():
        pairs = [
            (name.removesuffix(old) + new if name.endswith(old) else name, stored)
            for name, stored in pairs
        ]
    has_prefix = any(name.startswith(family.prefix) for name, _ in pairs)
    if has_prefix or not family.prefix:
        return pairs
    outside = {name for name in family.model_keys if not name.startswith(family.prefix)}
    return [
        (name if outside & {name, name.rpartition(".")[0]} else family.prefix + name, stored)
        for name, stored in pairs
    ]


def _unlike_copies(family: Family, slots: Mapping[str, Slot], store: Store) -> Iterator[str]:
    """Yield a line for each duplicate tensor with different values."""
    copied = {slot.ours: name for name, slot in slots.items()}
    first: dict[str, str] = {}
    for name, stored in _aliases(family, store):
        if name not in slots and (match := COPY.fullmatch(name)):
            name = copied.get(COPIES[match[1]], name)
        if (other := first.setdefault(name, stored)) == stored:
            continue
        first_copy, copy = store.read(other), store.read(stored)
        if not torch.equal(first_copy.to(copy.dtype), copy):
            yield f"{stored}: found values that differ from its duplicate {other}; expected the same"


def _repeated(family: Family, spec: ModelSpec) -> set[str]:
    """Return the names of a tied head's duplicates in old files."""
    words = {"head": ".weight", "head.weight": ""}
    return {
        name + words[held]
        for name, held in family.model_keys.items()
        if spec.head.tied and isinstance(held, str) and held in words
    }


def _fill(model: Decoder, slots: Mapping[str, tuple[str, Slot]], store: Store) -> None:
    tensors = tensors_of(model)
    total = sum(store.num_bytes(name) for name, _ in slots.values())
    with torch.no_grad(), Progress("Reading the weights", total) as progress:
        for name, slot in slots.values():
            foreign = progress.counted(store.read(name), lambda tensor: tensor.nbytes)
            try:
                slot.read(foreign, tensors)
            except ValueError as error:
                raise UserError(f"{name}: found {error}") from None


def _dtype(dtype: torch.dtype | str, store: Store) -> torch.dtype:
    """Replace "stored" by the most frequent dtype, or float32 if unsupported."""
    if isinstance(dtype, torch.dtype):
        return dtype
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    dtypes |= {str(value): value for value in dtypes.values()}
    most = Counter(store.dtypes.values()).most_common(1)[0][0]
    return dtypes.get(most, torch.float32)


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if names[NAMED:] else "")
    return f"{len(names)} tensor{'s' if names[1:] else ''} ({shown})"
