"""Sharded checkpoints: each process writes and reads blocks of the tensors.

    step-100/model-00001-of-00004.safetensors        weights of the first of four processes
    step-100/optimizers-00001-of-00004.safetensors   optimizer states of the same process

Each file's metadata has the offsets of its blocks. The format is torch.distributed.checkpoint's
(`HuggingFaceStorageWriter`), and its reader opens these files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archwright.files import DamagedError
from archwright.scale.layout import Block
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

INFO = "DCP_SHARDING_INFO"
"""Metadata key of the table from tensor names to block offsets."""
_BEGIN = "saved_offsets"
VERSION = {"DCP_VERSION": "1.0"}


def part_name(file: str, number: int, size: int) -> str:
    """Return the name of rank `number`'s part of `file`, of `size` parts."""
    return f"{file.removesuffix('.safetensors')}-{number + 1:05}-of-{size:05}.safetensors"


def is_whole(file: str, names: Sequence[str]) -> bool:
    """True if `names` contains either `file` or all of its parts."""
    matches = [match for name in names if (match := _parts_of(file).fullmatch(name))]
    if file in names:
        return not matches
    sizes, numbers = ({int(match[group]) for match in matches} for group in (2, 1))
    return sizes == {len(matches)} and numbers == {*range(1, len(matches) + 1)}


def blocks_to_write(
    tensors: Mapping[str, tuple[Tensor, Block]],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a process's blocks to write, and metadata; replicas take turns."""
    written, begins = {}, {}
    for number, (name, (tensor, block)) in enumerate(tensors.items()):
        is_empty = 0 in block.sizes and 0 not in block.shape
        if number % block.copies == block.copy and not is_empty:
            written[name] = tensor
            begins[name] = {_BEGIN: [*block.offsets]}
    return written, {INFO: json.dumps(begins), **VERSION}


class Stored:
    """Tensors of a file or of all its parts, read on access.

    Args:
        path: the file; parts are named after it (`part_name`).

    Raises:
        UserError: there is no such file.
        DamagedError: a file is not a complete safetensors file, or parts are missing.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.path = path
        self.metadata: dict[str, str] = {}
        self._places: dict[str, list[tuple[Path, Block]]] = {}
        self._opened: dict[Path, Any] = {}
        for file in self._files():
            with _clear_errors(file):
                opened: Any = safe_open(file, framework="pt")
                self._opened[file] = opened
                metadata = opened.metadata() or {}
                begins = json.loads(metadata.pop(INFO, "{}"))
                metadata.pop("DCP_VERSION", None)
                self.metadata |= metadata
                for name in opened.keys():  # noqa: SIM118
                    sizes = tuple(opened.get_slice(name).get_shape())
                    begin = tuple(begins[name][_BEGIN]) if name in begins else (0,) * len(sizes)
                    if any(type(at) is not int or at < 0 for at in begin):
                        raise ValueError(f"invalid offset of {name}")
                    end = tuple(a + b for a, b in zip(begin, sizes, strict=True))
                    self._places.setdefault(name, []).append((file, Block(end, begin, sizes)))
        for name, places in self._places.items():
            if sum(math.prod(block.sizes) for _, block in places) != math.prod(self.shape(name)):
                raise DamagedError(f"{path} is damaged: parts of {name} are missing.")

    def _files(self) -> list[Path]:
        if self.path.exists():
            return [self.path]
        paths = self.path.parent.glob(f"{self.path.stem}-*-of-*.safetensors")
        files = sorted(file for file in paths if _parts_of(self.path.name).fullmatch(file.name))
        return files or [self.path]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the full tensor."""
        ends = (block.shape for _, block in self._places[name])
        return tuple(max(sizes) for sizes in zip(*ends, strict=True))

    def whole(self, name: str) -> Tensor:
        """Return the full tensor."""
        shape = self.shape(name)
        return self.block(name, Block(shape, (0,) * len(shape), shape))

    def described(self, name: str) -> Tensor:
        """Return the tensor on the meta device; scalars have their value."""
        import torch

        shape = self.shape(name)
        if not shape:
            return self.whole(name)
        nothing = tuple(slice(0, 0) for _ in shape)
        return torch.empty(shape, dtype=self._read(name, 0, nothing).dtype, device="meta")

    def block(self, name: str, wanted: Block) -> Tensor:
        """Return a block of a tensor, assembled from all overlapping parts."""
        import torch

        if 0 in wanted.sizes:
            return torch.empty(wanted.sizes, dtype=self.described(name).dtype)
        result = None
        for number, (_, there) in enumerate(self._places[name]):
            spans = [
                (max(a, c), min(a + b, c + d))
                for a, b, c, d in zip(
                    wanted.offsets, wanted.sizes, there.offsets, there.sizes, strict=True
                )
            ]
            if any(start >= end for start, end in spans):
                continue
            here = tuple(
                slice(a - c, b - c) for (a, b), c in zip(spans, there.offsets, strict=True)
            )
            values = self._read(name, number, here)
            if values.shape == wanted.sizes:
                return values
            if result is None:
                # Zeros: blocks of a forged file may overlap and leave gaps, which must not expose old memory.
                result = torch.zeros(wanted.sizes, dtype=values.dtype)
            result[
                tuple(slice(a - c, b - c) for (a, b), c in zip(spans, wanted.offsets, strict=True))
            ] = values
        if result is None:
            raise DamagedError(f"{self.path} is damaged: parts of {name} are missing.")
        return result

    def _read(self, name: str, number: int, where: tuple[slice, ...]) -> Tensor:
        file, block = self._places[name][number]
        opened = self._opened[file]
        with _clear_errors(file):
            if not block.sizes or all(
                (s.start, s.stop) == (0, size) for s, size in zip(where, block.sizes, strict=True)
            ):
                values: Tensor = opened.get_tensor(name)
            else:
                values = opened.get_slice(name)[where]
            return values


def _parts_of(file: str) -> re.Pattern[str]:
    return re.compile(
        rf"{re.escape(file.removesuffix('.safetensors'))}-(\d{{5}})-of-(\d{{5}})\.safetensors"
    )


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of reading a safetensors file to user errors."""
    from safetensors import SafetensorError

    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except SafetensorError as error:
        raise DamagedError(f"{path} is not a complete safetensors file ({error}).") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: its metadata does not fit its tensors.") from error
