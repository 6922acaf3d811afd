"""From a foreign folder to a model."""

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
from archwright.model.language_model import LanguageModel
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
"""Tensors that one line names at most."""
COPY = re.compile(r".*(?:decoder|generator_lm_head|vocab_projector|embed_tokens)\.(weight|bias)")
COPIES = {"weight": ("embedding.weight",), "bias": ("head.bias",)}
"""Names of tensors that repeat one of ours in published files, and ours by the names' endings."""
SIZES = (
    *("dim", "vocab_size", "hidden_dim", "shared_hidden_dim", "num_experts"),
    *("num_heads", "num_kv_heads", "head_dim", "value_head_dim"),
    *("query_rank", "kv_rank", "nope_head_dim", "rope_head_dim"),
)
"""Numbers of a spec that no tensor can be shorter than."""


@dataclass(frozen=True)
class Origin:
    """Where a model in memory came from, so that it is written as the same."""

    family: str
    """The family that it was read as."""
    files: Mapping[str, str]
    """Companion files; see `archwright.text.companions`."""


CAME_FROM: WeakKeyDictionary[LanguageModel, Origin] = WeakKeyDictionary()


@dataclass(frozen=True)
class Loaded:
    """A model loaded from a Hugging Face folder."""

    model: LanguageModel
    spec: ModelSpec
    tokenizer: Tokenizer | None
    """None where the folder has no tokenizer."""
    family: str
    """The model_type of its config.json."""


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | Literal["stored"] = torch.float32,
    device: torch.device | str = "cpu",
) -> Loaded:
    """Return the model of a folder in the layout of Hugging Face: config.json, safetensors in one file or
    more, and a tokenizer; of one with a text model beside others, as of images, the text model.

    Nothing of it is run. Shapes are checked before memory is taken, and tensors are read one at a time, so
    that at the peak there is the model and its largest tensor.

    Args:
        dtype: of the weights; "stored": the one that most of the file's tensors have.
        device: where they go.

    Raises:
        UserError: what is missing, damaged, or not known to this package, one line each.
    """
    folder = Path(folder)
    whole_config = read_config(folder)
    config, wrapper = text_config(whole_config)
    family = family_of(config, str(folder / FILE))
    # What the decoder of two stacks reads first, where the config does not say it.
    start = family.defaults.get(DECODER_START) if family.encoder_layers else None
    files = read_files(folder, ({} if start is None else {DECODER_START: start}) | whole_config)
    with opened(folder) as whole:
        store = whole if wrapper is None else _text_alone(wrapper, whole, folder)
        if wrapper is not None:  # the whole and the text model may differ in what they say of it
            config["tie_word_embeddings"] = "lm_head.weight" not in store.shapes
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


def _text_alone(wrapper: Wrapper, whole: Store, folder: Path) -> Store:
    """Return the tensors of the text model, and say what is left aside."""
    store, aside = wrapper.tensors(whole)
    if aside:
        line = f"{folder}: the text model alone is read; left aside: {', '.join(aside)}"
        warnings.warn(line, stacklevel=3)
    return store


def _check_sizes(spec: ModelSpec, family: Family, store: Store, folder: Path) -> None:
    """Refuse sizes that no file of this size can have, before anything is made of them."""
    file, count = folder / FILE, len(store.shapes)
    layers = sum(len(stack.of(spec)) for stack in family.stacks)
    if layers > count:
        raise UserError(f"{file}: found {layers:,} layers, but {count} tensors")
    most = max(map(math.prod, store.shapes.values()))
    one_each = any("{e}" in name for name in family.layer_keys)
    tables = [spec, *spec.layers_by_kind.values()]
    for path, size in {k: v for t in tables for k, v in flatten(t.model_dump()).items()}.items():
        name = path.rpartition(".")[2]
        limit = min(most, count) if name == "num_experts" and one_each else most
        if name in SIZES and isinstance(size, int) and size > limit:
            raise UserError(
                f"{file}: found {path} = {size:,}, but {count:,} tensors of at most {most:,} numbers"
            )


def _shapes(spec: ModelSpec, folder: Path) -> dict[str, Tensor]:
    """Return what a checkpoint holds of a model, without memory."""
    try:
        return tensors_of(build_uninitialized(spec, device="meta"))
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # sizes past 64 bits
        raise UserError(f"{folder / FILE}: too large to be built: {first_line(error)}") from None


def _with_stored_heads(spec: ModelSpec, family: Family, store: Store) -> ModelSpec:
    """Return the spec with the heads that the file has, and a bias of logits where one there is not zero."""
    in_file = dict(_aliases(family, store))
    bias = in_file.get(family.logits_bias)
    has_bias = bias is not None and bool(store.read(bias).any())
    sequence_head = PooledHead() if family.sequence_head in in_file else NoSequenceHead()
    return family.with_heads(spec, has_bias, sequence_head, family.replaced_head in in_file)


def _tied_as_stored(spec: ModelSpec, family: Family, store: Store, folder: Path) -> ModelSpec:
    """Return the spec, with a head of its own where the file has another than the embedding, whatever the
    config says: some models were trained so (T5 v1.1)."""
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
    """Return each tensor's slot and its name in the file, after all names and shapes were found right.

    Raises:
        UserError: tensors that are missing, too many, or of another shape.
    """
    tensors = _shapes(spec, folder)
    slots = family.slots(spec, tensors)
    in_file = dict(_aliases(family, store))
    lines = []
    if missing := [n for n, slot in slots.items() if n not in in_file and slot.ours]:
        lines.append(f"{folder}: {_few(missing)} missing")
    known = {*slots, *_repeated(family, spec)}
    if extra := [
        name for name in in_file if name not in known and not family.ignores(name, spec.num_layers)
    ]:
        lines.append(f"{folder}: {_few(extra)} not of a {family.architecture_of(spec)} like this")
    for name, slot in slots.items():
        if name in in_file and not slot.fits(found := store.shapes[in_file[name]], tensors):
            wanted = list(slot.shape(tensors))
            lines.append(f"{folder}: {name}: found shape {list(found)}; expected {wanted}")
    lines += [] if lines else [f"{folder}: {line}" for line in _unlike_copies(family, slots, store)]
    if lines:
        more = [f"{folder}: and {len(lines) - 8} more shapes"] if len(lines) > 8 else []
        raise UserError(*lines[:8], *more)
    return {name: (in_file[name], slot) for name, slot in slots.items() if name in in_file}


def tensors_of(model: LanguageModel) -> dict[str, Tensor]:
    """Return what a checkpoint holds of a model, by our names; a tied head is the embedding."""
    tensors = dict(model.state_dict())
    if model.spec.head.tied:
        tensors.pop("head.weight", None)
    return tensors


def _aliases(family: Family, store: Store) -> list[tuple[str, str]]:
    """Return names as the family has them, with those of the files, which may lack the body's prefix. Two tensors of
    a file may have the same name in the family."""
    plain = [(name, name) for name in store.shapes]
    for old, new in family.endings.items():
        plain = [
            (name.removesuffix(old) + new if name.endswith(old) else name, found)
            for name, found in plain
        ]
    whole = any(name.startswith(family.prefix) for name, _ in plain)
    if whole or not family.prefix:
        return plain
    outside = {name for name in family.model_keys if not name.startswith(family.prefix)}
    return [
        (name if outside & {name, name.rpartition(".")[0]} else family.prefix + name, found)
        for name, found in plain
    ]


def _unlike_copies(family: Family, slots: Mapping[str, Slot], store: Store) -> Iterator[str]:
    """Yield a line for each tensor of a file that repeats another one with different values."""
    copied = {slot.ours: name for name, slot in slots.items()}
    first: dict[str, str] = {}
    for name, stored in _aliases(family, store):
        if name not in slots and (found := COPY.fullmatch(name)):
            name = copied.get(COPIES[found[1]], name)
        if (other := first.setdefault(name, stored)) == stored:
            continue
        one, two = store.read(other), store.read(stored)
        if not torch.equal(one.to(two.dtype), two):
            yield f"{stored}: found other values than in {other}, which it repeats; expected the same"


def _repeated(family: Family, spec: ModelSpec) -> set[str]:
    """Return the names of a tied head, which old files have too."""
    words = {"head": ".weight", "head.weight": ""}
    return {
        name + words[held]
        for name, held in family.model_keys.items()
        if spec.head.tied and isinstance(held, str) and held in words
    }


def _fill(model: LanguageModel, slots: Mapping[str, tuple[str, Slot]], store: Store) -> None:
    tensors = tensors_of(model)
    total = sum(store.num_bytes(name) for name, _ in slots.values())
    with torch.no_grad(), Progress("Reading the weights", total) as progress:
        for name, slot in slots.values():
            foreign = progress.counted(store.read(name), lambda tensor: tensor.nbytes)
            try:
                slot.read(foreign, tensors)
            except ValueError as error:
                raise UserError(f"{name}: found {error}") from None


def _dtype(wanted: torch.dtype | str, store: Store) -> torch.dtype:
    """Return the dtype of the weights."""
    if isinstance(wanted, torch.dtype):
        return wanted
    known = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    known |= {str(dtype): dtype for dtype in known.values()}
    most = Counter(store.dtypes.values()).most_common(1)[0][0]
    return known.get(most, torch.float32)


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if names[NAMED:] else "")
    return f"{len(names)} tensor{'s' if names[1:] else ''} ({shown})"
