"""Tensors of a Hugging Face folder: shapes from headers, values on demand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from archwright.format import shortened
from archwright.hf.layouts import Shape
from archwright.spec.errors import UserError
from archwright.spec.files import check_utf8, irregular
from archwright.text.json_table import first_line, read_table

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OLD_WEIGHTS = "pytorch_model.bin"
OLD_INDEX = "pytorch_model.bin.index.json"
WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "float64": 8, "bfloat16": 2, "float16": 2}
"""Bytes per number, by dtype name in files."""
LONGEST_NAME = 255
"""Maximum length of a file name, in characters."""


class Store:
    """All tensors of a folder; values are read on demand.

    Attributes:
        shapes: Shape of each tensor by name, from the file headers.
        dtypes: Dtype name of each tensor.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self.dtypes: dict[str, str] = {}
        self._files: dict[str, tuple[Any, str]] = {}

    def renamed(self, names: Mapping[str, str]) -> Store:
        """Return a store of renamed tensors; `names` is new -> old."""
        store = Store()
        for new, old in names.items():
            store.shapes[new], store.dtypes[new] = self.shapes[old], self.dtypes[old]
            store._files[new] = self._files[old]
        return store

    def read(self, name: str) -> Tensor:
        """Return the values of a tensor.

        Raises:
            UserError: The file is damaged.
        """
        file, key = self._files[name]
        try:
            tensor: Tensor = file[key] if isinstance(file, Mapping) else file.get_tensor(key)
        except (SafetensorError, RuntimeError, ValueError) as error:
            raise UserError(f"{name}: cannot be read: {first_line(error)}") from None
        return tensor

    def num_bytes(self, name: str) -> int:
        """Return the size of a tensor in its file, in bytes."""
        width = WIDTHS.get(self.dtypes[name].removeprefix("torch."), 4)
        return math.prod(self.shapes[name]) * width

    def add(self, path: Path, name: str, shape: Shape, dtype: str, file: object) -> None:
        """Add a tensor of an open file or of a mapping."""
        if name in self.shapes:
            raise UserError(f"{path}: {name}: found in two files; expected it in one")
        self.shapes[name], self.dtypes[name], self._files[name] = shape, dtype, (file, name)


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Open the tensors of a folder, in safetensors or old .bin files.

    Raises:
        UserError: There are no weights, a file is damaged or unsafe, or an index names files outside of the folder.
    """
    with ExitStack() as files:
        store = Store()
        for path in _paths(folder):
            if kind := irregular(path):
                raise UserError(f"{path}: found {kind}; expected a file of tensors")
            if path.suffix == ".bin":
                tensors = _unpickled(path)
                for name, tensor in tensors.items():
                    store.add(path, name, tuple(tensor.shape), str(tensor.dtype), tensors)
                continue
            file = files.enter_context(_open(path))
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                store.add(path, name, tuple(part.get_shape()), part.get_dtype(), file)
        yield store


def _paths(folder: Path) -> list[Path]:
    """Return the paths of a folder's weight files."""
    for single, index in ((WEIGHTS, INDEX), (OLD_WEIGHTS, OLD_INDEX)):
        if (folder / single).exists():
            return [folder / single]
        if (folder / index).exists():
            return [folder / name for name in _shards(folder / index)]
    raise UserError(
        f"{folder}: no weights; expected {WEIGHTS}, {INDEX} with its files, or {OLD_WEIGHTS}. "
        "The architecture of the folder can be used without weights, by archwright show, diff and train"
    )


def _shards(index: Path) -> list[str]:
    """Return the file names of an index, all inside its folder."""
    names = read_table(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise UserError(f"{index}: found no weight_map; expected the file of each tensor")
    for name in names.values():
        if not _is_plain(name):
            raise UserError(
                f"{index}: found the file {shortened(repr(name))}; expected a plain name in the folder"
            )
    files: list[str] = list(dict.fromkeys(names.values()))
    for name in files:
        if not (index.parent / name).is_file():
            raise UserError(
                f"{index.parent / name}: there is no such file, but {index.name} names it"
            )
    return files


def _is_plain(name: object) -> bool:
    """True if a name is a plain file name on every system."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_NAME
        and Path(name).name == name
        and not {*name} & {"\\", "\0"}
        and name not in (".", "..")
    )


def _open(path: Path) -> Any:
    check_utf8(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path}: not a whole safetensors file: {first_line(error)}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _unpickled(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of an old .bin file, by name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # torch raises errors of many types for such files
        raise UserError(f"{path}: not a file of tensors alone: {first_line(error)}") from None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise UserError(f"{path}: found other objects; expected only tensors by name")
    return tensors
