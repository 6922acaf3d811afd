"""The tensors of a module as a safetensors file, and back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from archwright.checkpoint.parts import Stored
from archwright.checkpoint.tree import join, split
from archwright.files import DamagedError, replacing
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn


Values = Iterable[tuple[str, "Tensor"]]
"""Tensors by name, of which each is made when it is asked for."""


def write_model(
    path: str | Path, model: nn.Module, metadata: Mapping[str, str], values: Values | None = None
) -> None:
    """Write the state of `model` and `metadata` to one safetensors file, atomically.

    Tied tensors are written once.

    Args:
        values: of the tensors of a model on the meta device, as of `write_tensors`.

    Raises:
        UserError: the file cannot be written; an old file at `path` is then untouched.
    """
    tensors, own = described(model_weights(model))
    with replacing(path) as temporary:
        write_tensors(temporary, tensors, {**metadata, **own}, values)


def described(weights: Weights) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of weights, tied ones once, and the metadata that says the rest."""
    tensors = {name: t for name, t in weights.tensors.items() if name not in weights.ties}
    own = {}
    if weights.ties:
        own[_TIED] = json.dumps(weights.ties)
    if weights.extra:
        own[_EXTRA] = json.dumps(split(weights.extra, _EXTRA, tensors))
    return tensors, own


def read_model(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name, each tied one under all its names.

    Raises:
        UserError: there is no such file.
        DamagedError: it is not a whole safetensors file.
    """
    return read_weights(Path(path)).tensors


def load_model(path: str | Path, model: nn.Module, *, mapped: bool = False) -> None:
    """Set the state of `model` to what `write_model` wrote; when it raises, nothing was changed.

    Args:
        mapped: let the model, which may be on the meta device, have the tensors of the file: they take no memory that
            the system cannot take back.

    Raises:
        UserError: names, shapes, dtypes or ties that do not fit, one line each.
        DamagedError: it is not a whole safetensors file.
    """
    saved = read_weights(Path(path))
    if problems := [*(() if mapped else without_memory(model)), *misfits(saved, model)]:
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    put(saved, model, mapped=mapped)


def check_model(path: str | Path, model: nn.Module) -> None:
    """Compare the file with a model, which may be on the meta device; raises as `load_model` does."""
    if problems := list(misfits(described_weights(Path(path)), model)):
        raise UserError(*(f"{path}: {problem}" for problem in problems))


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return the text that `write_model` was given beside the model."""
    metadata = Stored(Path(path)).metadata
    return {k: v for k, v in metadata.items() if k not in ("format", _TIED, _EXTRA)}


def take_weights(
    model: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy `tensors` into `model` by name; return the names taken, and those left new. On the meta device nothing is
    copied, and all is checked.

    A warning names tensors that the model has no place for.

    Raises:
        UserError: tensors of another shape, one line each, or no name that fits; the model is
            then untouched.
    """
    own = model_weights(model)
    taken = tuple(name for name in own.tensors if name in tensors)
    if not taken:
        raise UserError(
            f"None of the {len(tensors)} given tensors is in the model: "
            f"they are named like {_few(tensors)}; the model's like {_few(own.tensors)}."
        )
    if problems := [*_other_shapes(own.tensors, tensors), *_untied(own, tensors)]:
        raise UserError(*problems)
    if unused := [name for name in tensors if name not in own.tensors]:
        warnings.warn(f"Not used, as the model has no such tensor: {_few(unused)}.", stacklevel=2)
    for name in taken:
        own.tensors[name].copy_(tensors[name])
    return taken, tuple(name for name in own.tensors if name not in tensors)


def sources(model: nn.Module, tensors: Container[str]) -> dict[str, str]:
    """Return by name the tensors of a model that `take_weights` sets, each with its name among those that are given;
    tied ones once."""
    own = model_weights(model)
    return {own.ties.get(name, name): name for name in own.tensors if name in tensors}


class Weights(NamedTuple):
    """A module's `state_dict`, under its names without `torch.compile`."""

    tensors: dict[str, Tensor]
    ties: dict[str, str]  # from each name whose tensor an earlier name has too to that name
    extra: dict[str, Any]  # what `get_extra_state` gave


def model_weights(model: nn.Module) -> Weights:
    """Return the weights of `model`; the tensors are its own, without gradients."""
    import torch

    state = {plain_name(n): value for n, value in model.state_dict(keep_vars=True).items()}
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    extra = {name: value for name, value in state.items() if name not in tensors}
    ties = _ties(tensors)
    return Weights({name: value.detach() for name, value in tensors.items()}, ties, extra)


def read_weights(path: Path) -> Weights:
    """Return the weights in the file at `path`; raises as `read_model` does."""
    return _weights(path, *read_tensors(path))


class Opened(Mapping[str, "Tensor"]):
    """The tensors of a safetensors file, or of its parts, each read when it is asked for, tied ones under all names.

    Raises:
        UserError, DamagedError: as `read_model` does.
    """

    def __init__(self, path: str | Path) -> None:
        self._stored = Stored(Path(path))
        saved = described_weights(Path(path))
        self._names = {name: saved.ties.get(name, name) for name in saved.tensors}

    def __getitem__(self, name: str) -> Tensor:
        return self._stored.whole(self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def described_weights(path: Path) -> Weights:
    """Return the weights in the file at `path` without their values; raises as `read_model` does."""
    stored = Stored(path)
    return _weights(path, {name: stored.described(name) for name in stored}, stored.metadata)


def _weights(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Weights:
    own = {name: t for name, t in tensors.items() if not name.startswith(f"{_EXTRA}/")}
    try:
        extra = dict(join(from_json(metadata.get(_EXTRA, "{}")), tensors))
        ties = {
            str(alias): str(name) for alias, name in from_json(metadata.get(_TIED, "{}")).items()
        }
        return Weights(own | {alias: own[name] for alias, name in ties.items()}, ties, extra)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: what it says of itself does not fit.") from error


def misfits(saved: Weights, model: nn.Module) -> Iterator[str]:
    """Yield a line for each difference between `saved` and `model` beside the values."""
    own = model_weights(model)
    here, there = {**own.tensors, **own.extra}, {**saved.tensors, **saved.extra}
    yield from (f"{name}: missing from the checkpoint." for name in here if name not in there)
    yield from (f"{name}: not in the model." for name in there if name not in here)
    yield from _other_shapes(own.tensors, saved.tensors)
    for name in own.tensors.keys() & saved.tensors.keys():
        found, wanted = saved.tensors[name].dtype, own.tensors[name].dtype
        if found != wanted:
            yield f"{name}: {found} in the checkpoint, {wanted} in the model."
    for name in here.keys() & there.keys() & (own.ties.keys() | saved.ties.keys()):
        if own.ties.get(name) != saved.ties.get(name):
            yield f"{name}: {_tie(saved, name)} in the checkpoint, {_tie(own, name)} in the model."


def without_memory(model: nn.Module) -> Iterator[str]:
    """Yield a line where a model has no memory for values."""
    if any(tensor.is_meta for tensor in model_weights(model).tensors.values()):
        yield "the model is on the meta device; give it memory first (model.to_empty)."


def put(saved: Weights, model: nn.Module, *, mapped: bool = False) -> None:
    """Copy `saved`, which has no `misfits`, into `model`, or let it have these very tensors."""
    values = {**saved.tensors, **saved.extra}
    model.load_state_dict(
        {name: values[plain_name(name)] for name in model.state_dict()}, assign=mapped
    )


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str],
    values: Values | None = None,
) -> None:
    """Write a safetensors file of tensors whose values come one by one, in any order: no more than one is held.

    The file is the one that the library writes of them, with the metadata in order, so that equal content makes equal
    files.

    Args:
        tensors: what they are; they may be on the meta device.
        values: of those, and perhaps of others, which are left out; by default they have them.

    Raises:
        OSError: as any writing does.
        UserError: the format has no tensors of a dtype.
    """
    import torch

    head, begins = _header(path, tensors, metadata)
    missing = {name for name, tensor in tensors.items() if tensor.numel()}
    with path.open("xb") as file:
        file.write(head)
        for name, value in tensors.items() if values is None else values:
            if name in missing:
                missing.remove(name)
                plain = value.detach().to("cpu", tensors[name].dtype).contiguous()
                file.seek(len(head) + begins[name])
                file.write(plain.view(-1).view(torch.uint8).numpy().data)
    assert not missing, f"no values of {missing}"


def _header(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return what stands before the values of a safetensors file, and where each tensor's begin behind it."""
    kinds = {name: _kind(path, tensor) for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": dict(sorted({"format": "pt", **metadata}.items()))}
    begins, end = {}, 0
    widest_first = [*reversed(DTYPES.values())]
    for name in sorted(tensors, key=lambda name: (widest_first.index(kinds[name]), name)):
        begins[name], end = end, end + tensors[name].nbytes
        offsets, shape = [begins[name], end], [*tensors[name].shape]
        header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": offsets}
    content = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    content = content.ljust(-(-len(content) // 8) * 8)
    return len(content).to_bytes(8, "little") + content, begins


def _kind(path: Path, tensor: Tensor) -> str:
    """Return what the format calls a tensor's dtype."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UserError(f"{path}: safetensors has no tensors of {tensor.dtype}.")
    return DTYPES[name]


DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
"""torch's names of dtypes and the format's, in the format's order, of which the last stand first in a file."""


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, mapped from the file, and the metadata of a safetensors file, or of all its parts."""
    stored = Stored(path)
    return {name: stored.whole(name) for name in stored}, stored.metadata


_TIED = "archwright.tied"  # keys of the file's metadata, and the latter a prefix of names
_EXTRA = "archwright.extra_state"


def plain_name(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _ties(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    first: dict[Any, str] = {}
    ties = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            where = id(tensor) if tensor.is_meta else tensor.data_ptr()
            place = (tensor.device, where, tensor.shape, tensor.stride(), tensor.dtype)
            if (earlier := first.setdefault(place, name)) != name:
                ties[name] = earlier
    return ties


def _other_shapes(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
    for name in own:
        if name in given and given[name].shape != own[name].shape:
            found, wanted = list(given[name].shape), list(own[name].shape)
            yield f"{name}: shape {found} in the checkpoint, {wanted} in the model."


def _untied(own: Weights, given: Mapping[str, Tensor]) -> Iterator[str]:
    for alias, name in own.ties.items():
        if alias in given and name in given and not given[alias].equal(given[name]):
            yield f"{alias}: tied to {name} in the model, but other values in the checkpoint."


def _tie(weights: Weights, name: str) -> str:
    return f"tied to {weights.ties[name]}" if name in weights.ties else "not tied"


def _few(names: Collection[str], most: int = 3) -> str:
    shown = ", ".join(list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
