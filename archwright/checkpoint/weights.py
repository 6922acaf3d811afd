"""Saving and loading a module's tensors as a safetensors file."""

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
"""Pairs of name and tensor, created one at a time."""


def write_model(
    path: str | Path, model: nn.Module, metadata: Mapping[str, str], values: Values | None = None
) -> None:
    """Write the state of `model` and `metadata` to a safetensors file, atomically.

    Tied tensors are written once.

    Args:
        values: values of a model on the meta device (see `write_tensors`).

    Raises:
        UserError: the file cannot be written; an existing file is unchanged.
    """
    tensors, about = described(model_weights(model))
    with replacing(path) as temporary:
        write_tensors(temporary, tensors, {**metadata, **about}, values)


def described(weights: Weights) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors without duplicates, and metadata with ties and extra state."""
    tensors = {name: t for name, t in weights.tensors.items() if name not in weights.ties}
    metadata = {}
    if weights.ties:
        metadata[_TIED] = json.dumps(weights.ties)
    if weights.extra:
        metadata[_EXTRA] = json.dumps(split(weights.extra, _EXTRA, tensors))
    return tensors, metadata


def read_model(path: str | Path) -> dict[str, Tensor]:
    """Return a safetensors file's tensors by name, tied tensors under all names.

    Raises:
        UserError: there is no such file.
        DamagedError: the file is not a complete safetensors file.
    """
    return read_weights(Path(path)).tensors


def load_model(path: str | Path, model: nn.Module, *, mapped: bool = False) -> None:
    """Load a file from `write_model` into `model`; unchanged if it raises.

    Args:
        mapped: assign tensors that map the file, instead of copies. The operating system can reclaim their memory, and
            the model may be on the meta device.

    Raises:
        UserError: names, shapes, dtypes or ties differ; the message lists all differences.
        DamagedError: the file is not a complete safetensors file.
    """
    saved = read_weights(Path(path))
    if problems := [*(() if mapped else without_memory(model)), *misfits(saved, model)]:
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    put(saved, model, mapped=mapped)


def check_model(path: str | Path, model: nn.Module) -> None:
    """Check that a file fits a model (possibly on the meta device); raises as `load_model`."""
    if problems := list(misfits(described_weights(Path(path)), model)):
        raise UserError(*(f"{path}: {problem}" for problem in problems))


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return the metadata passed to `write_model`."""
    metadata = Stored(Path(path)).metadata
    return {k: v for k, v in metadata.items() if k not in ("format", _TIED, _EXTRA)}


def take_weights(
    model: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy `tensors` into `model` by name; return copied and missing names.

    On the meta device, the check is the same, but nothing is copied. Unused tensors cause a warning.

    Raises:
        UserError: no name matches, or shapes or ties differ; the model is unchanged.
    """
    target = model_weights(model)
    taken = tuple(name for name in target.tensors if name in tensors)
    if not taken:
        raise UserError(
            f"None of the {len(tensors)} tensors is in the model: "
            f"found names such as {_few(tensors)}; expected names such as {_few(target.tensors)}."
        )
    if problems := [*_shape_misfits(target.tensors, tensors), *_untied(target, tensors)]:
        raise UserError(*problems)
    if unused := [name for name in tensors if name not in target.tensors]:
        warnings.warn(f"Not used, as the model has no such tensor: {_few(unused)}.", stacklevel=2)
    for name in taken:
        target.tensors[name].copy_(tensors[name])
    return taken, tuple(name for name in target.tensors if name not in tensors)


def sources(model: nn.Module, tensors: Container[str]) -> dict[str, str]:
    """Map model names to names in `tensors`, as `take_weights`; tied tensors appear once."""
    target = model_weights(model)
    return {target.ties.get(name, name): name for name in target.tensors if name in tensors}


class Weights(NamedTuple):
    """A module's `state_dict`, without the name prefix of `torch.compile`."""

    tensors: dict[str, Tensor]
    ties: dict[str, str]  # alias -> first name of the same tensor
    extra: dict[str, Any]  # results of `get_extra_state`


def model_weights(model: nn.Module) -> Weights:
    """Return the weights of `model` as detached tensors that share its memory."""
    import torch

    state = {plain_name(n): value for n, value in model.state_dict(keep_vars=True).items()}
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    extra = {name: value for name, value in state.items() if name not in tensors}
    ties = _ties(tensors)
    return Weights({name: value.detach() for name, value in tensors.items()}, ties, extra)


def read_weights(path: Path) -> Weights:
    """Return the weights in a file; raises as `read_model`."""
    return _weights(path, *read_tensors(path))


class Opened(Mapping[str, "Tensor"]):
    """Tensors of a file or its parts, read on access; ties under all names.

    Raises:
        UserError, DamagedError: as `read_model`.
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
    """Return the weights in a file without their values; raises as `read_model`."""
    stored = Stored(path)
    return _weights(path, {name: stored.described(name) for name in stored}, stored.metadata)


def _weights(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Weights:
    stored = {name: t for name, t in tensors.items() if not name.startswith(f"{_EXTRA}/")}
    try:
        extra = dict(join(from_json(metadata.get(_EXTRA, "{}")), tensors))
        ties = {
            str(alias): str(name) for alias, name in from_json(metadata.get(_TIED, "{}")).items()
        }
        return Weights(stored | {alias: stored[name] for alias, name in ties.items()}, ties, extra)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: its metadata does not fit its tensors.") from error


def misfits(saved: Weights, model: nn.Module) -> Iterator[str]:
    """Yield an error for each difference between `saved` and `model`, except in values."""
    target = model_weights(model)
    here, there = {**target.tensors, **target.extra}, {**saved.tensors, **saved.extra}
    yield from (f"{name}: missing from the checkpoint." for name in here if name not in there)
    yield from (f"{name}: not in the model." for name in there if name not in here)
    yield from _shape_misfits(target.tensors, saved.tensors)
    for name in target.tensors.keys() & saved.tensors.keys():
        dtype, wanted = saved.tensors[name].dtype, target.tensors[name].dtype
        if dtype != wanted:
            yield f"{name}: {dtype} in the checkpoint, {wanted} in the model."
    for name in here.keys() & there.keys() & (target.ties.keys() | saved.ties.keys()):
        if target.ties.get(name) != saved.ties.get(name):
            yield f"{name}: {_tie(saved, name)} in the checkpoint, {_tie(target, name)} in the model."


def without_memory(model: nn.Module) -> Iterator[str]:
    """Yield an error if the model is on the meta device."""
    if any(tensor.is_meta for tensor in model_weights(model).tensors.values()):
        yield "the model is on the meta device; allocate it first (model.to_empty)."


def put(saved: Weights, model: nn.Module, *, mapped: bool = False) -> None:
    """Copy `saved` (without `misfits`) into `model`, or assign its tensors if `mapped`."""
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
    """Write a safetensors file from values in any order, one at a time.

    The file equals the output of the safetensors library, with sorted metadata: equal content gives equal files.

    Args:
        tensors: shapes and dtypes by name; may be on the meta device.
        values: values by name. Further names are ignored. Default: `tensors`.

    Raises:
        OSError: writing fails.
        UserError: the format does not support a dtype.
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
    """Return a safetensors header, and each tensor's offset after it."""
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
    """Return the safetensors name of a tensor's dtype."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UserError(f"{path}: safetensors does not support {tensor.dtype}.")
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
"""torch dtype -> safetensors dtype, in the format's order; files have the last dtypes first."""


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the mapped tensors and metadata of a file or its parts."""
    stored = Stored(path)
    return {name: stored.whole(name) for name in stored}, stored.metadata


_TIED = "archwright.tied"  # metadata keys; the second is also a prefix of tensor names
_EXTRA = "archwright.extra_state"


def plain_name(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _ties(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    first: dict[Any, str] = {}
    ties = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            address = id(tensor) if tensor.is_meta else tensor.data_ptr()
            place = (tensor.device, address, tensor.shape, tensor.stride(), tensor.dtype)
            if (earlier := first.setdefault(place, name)) != name:
                ties[name] = earlier
    return ties


def _shape_misfits(target: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> Iterator[str]:
    for name in target:
        if name in saved and saved[name].shape != target[name].shape:
            shape, wanted = list(saved[name].shape), list(target[name].shape)
            yield f"{name}: shape {shape} in the checkpoint, {wanted} in the model."


def _untied(target: Weights, saved: Mapping[str, Tensor]) -> Iterator[str]:
    for alias, name in target.ties.items():
        if alias in saved and name in saved and not saved[alias].equal(saved[name]):
            yield f"{alias}: tied to {name} in the model, but other values in the checkpoint."


def _tie(weights: Weights, name: str) -> str:
    return f"tied to {weights.ties[name]}" if name in weights.ties else "not tied"


def _few(names: Collection[str], most: int = 3) -> str:
    shown = ", ".join(list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
