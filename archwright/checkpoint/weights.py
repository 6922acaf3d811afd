"""The tensors of a module as a safetensors file, and back."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from archwright.checkpoint.parts import Stored
from archwright.checkpoint.tree import join, split
from archwright.files import DamagedError, replacing
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn


def write_model(path: str | Path, model: nn.Module, metadata: Mapping[str, str]) -> None:
    """Write the state of `model` and `metadata` to one safetensors file, atomically.

    Tied tensors are written once.

    Raises:
        UserError: the file cannot be written; an old file at `path` is then untouched.
    """
    with replacing(path) as temporary:
        write_weights(temporary, model, metadata)


def write_weights(path: Path, model: nn.Module, metadata: Mapping[str, str]) -> None:
    """Write what `write_model` writes straight to `path`; raises OSError, as any writing does."""
    tensors, own = described(model_weights(model))
    write_tensors(path, tensors, {**metadata, **own})


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


def load_model(path: str | Path, model: nn.Module) -> None:
    """Set the state of `model` to what `write_model` wrote; when it raises, nothing was changed.

    Raises:
        UserError: names, shapes, dtypes or ties that do not fit, one line each.
        DamagedError: it is not a whole safetensors file.
    """
    saved = read_weights(Path(path))
    if problems := list(misfits(saved, model)):
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    put(saved, model)


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return the text that `write_model` was given beside the model."""
    metadata = Stored(Path(path)).metadata
    return {k: v for k, v in metadata.items() if k not in ("format", _TIED, _EXTRA)}


def take_weights(
    model: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy `tensors` into `model` by name; return the names taken, and those left new.

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


class Weights(NamedTuple):
    """A module's `state_dict`, under its names without `torch.compile`."""

    tensors: dict[str, Tensor]
    ties: dict[str, str]  # from each name whose tensor an earlier name has too to that name
    extra: dict[str, Any]  # what `get_extra_state` gave


def model_weights(model: nn.Module) -> Weights:
    """Return the weights of `model`; the tensors are its own, without gradients."""
    import torch

    state = {plain_name(name): value for name, value in model.state_dict().items()}
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    extra = {name: value for name, value in state.items() if name not in tensors}
    return Weights(tensors, _ties(tensors), extra)


def read_weights(path: Path) -> Weights:
    """Return the weights in the file at `path`; raises as `read_model` does."""
    return _weights(path, *read_tensors(path))


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
    if any(tensor.is_meta for tensor in own.tensors.values()):
        yield "the model is on the meta device; give it memory first (model.to_empty)."
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


def put(saved: Weights, model: nn.Module) -> None:
    """Copy `saved`, which has no `misfits`, into `model`."""
    values = {**saved.tensors, **saved.extra}
    model.load_state_dict({name: values[plain_name(name)] for name in model.state_dict()})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file; raises OSError, as any writing does."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode  # the library makes files that only their owner may read
    try:
        # With some metadata always: of no tensors and an empty table, safetensors 0.8 makes a file
        # that it cannot read.
        # The format asks for tensors on the CPU, contiguous, no two sharing memory.
        seen: set[int] = set()
        result = {}
        for name, tensor in tensors.items():
            plain = tensor.detach().cpu().contiguous()
            if plain.untyped_storage().data_ptr() in seen:
                plain = plain.clone()
            seen.add(plain.untyped_storage().data_ptr())
            result[name] = plain
        save_file(result, path, {"format": "pt", **metadata})
        _sort_metadata(path)
    except SafetensorError as error:
        found = re.search(r"([^:]*) \(os error (\d+)\)", str(error))
        cause = (int(found[2]), found[1].strip()) if found else (str(error),)
        raise OSError(*cause) from error
    except KeyError as error:
        raise UserError(f"{path}: safetensors has no tensors of {error}.") from error
    path.chmod(mode)


def _sort_metadata(path: Path) -> None:
    """Bring the metadata in the file's header, which the library writes in any order, into one, so
    that equal content makes equal files."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        content = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(content) <= size
        file.seek(8)
        file.write(content.ljust(size))


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
        if tensor.numel() and not tensor.is_meta:
            place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
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
