"""Checkpoints of a training run: a folder per saved step.

    step-100/model.safetensors        tensors of the module, tied tensors once
    step-100/optimizers.safetensors   tensors of the optimizers
    step-100/state.safetensors        tensors of the generators and the caller's state
    step-100/state.json               everything else
    step-100/COMPLETE.json            sizes and hashes of the files, written last

With several processes, each writes a part of the first two files (see `archwright.checkpoint.parts`).

A checkpoint is written to a hidden folder, flushed to disk and renamed. Therefore, every folder with a
COMPLETE.json is complete, even after a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from archwright.checkpoint import contents, rng, weights
from archwright.checkpoint import optimizers as _optimizers
from archwright.checkpoint.parts import Stored, blocks_to_write, is_whole, part_name
from archwright.checkpoint.tree import split
from archwright.files import DamagedError, clear_errors, remove_folder, sync
from archwright.scale.layout import Block
from archwright.spec.errors import UserError
from archwright.spec.version import FORMAT, check_format

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Seals = dict[str, dict[str, Any]]
"""Size and hash of files by name, as in COMPLETE.json."""


def save(
    folder: str | Path,
    step: int,
    *,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    state: Mapping[str, object],
    keep: int,
) -> Path:
    """Save a checkpoint and return its path; keep only the newest `keep`.

    The states of the global random number generators are included. `state` may contain numbers, strings, lists,
    tuples, mappings, tensors and arrays.

    Raises:
        UserError: writing fails, the folder has a complete checkpoint of a later step, or `state` contains
            another type; earlier checkpoints are unchanged.
    """
    snapshot = take(step, model=model, optimizers=optimizers, state=state, copies=False)
    return write(folder, snapshot, keep)


class Snapshot(NamedTuple):
    """Contents of a checkpoint before it is written."""

    step: int
    files: dict[str, tuple[dict[str, Tensor], dict[str, str]]]
    """Tensors and metadata of each safetensors file."""
    content: str | None
    """Everything except tensors, as JSON; None if another process writes it."""
    values: weights.Values | None = None
    """Values of the model if its tensors are on the meta device."""


def take(
    step: int,
    *,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    state: Mapping[str, object],
    copies: bool = True,
) -> Snapshot:
    """Return a snapshot for `write`.

    With `copies`, tensors are copied to CPU memory, so that training may continue before `write`.

    Raises:
        UserError: `state` contains an unsupported type.
    """
    moments = {name: _optimizers.read_optimizer(o, model) for name, o in optimizers.items()}
    optimizer_tensors: dict[str, Tensor] = {}
    state_tensors: dict[str, Tensor] = {}
    content = {
        "optimizers": split(moments, "optimizers", optimizer_tensors),
        "generators": split(rng.read_generators(), "generators", state_tensors),
        "state": split(state, "state", state_tensors),
    }
    files = {
        _MODEL: weights.described(weights.model_weights(model)),
        contents.OPTIMIZERS: (optimizer_tensors, {}),
        contents.STATE: (state_tensors, {}),
    }
    if copies:
        files = {name: (_copies(tensors), about) for name, (tensors, about) in files.items()}
    return Snapshot(step, files, json.dumps(content, indent=1))


def take_part(
    step: int,
    process: tuple[int, int],
    *,
    tensors: Mapping[str, tuple[Tensor, Block]],
    optimizers: Mapping[str, Mapping[str, Any]],
    blocks: Mapping[str, Sequence[Block]],
    metadata: Mapping[str, str],
    state: Mapping[str, object] | None,
) -> Snapshot:
    """Return one rank's part of a sharded checkpoint, copied to CPU memory.

    Args:
        process: rank and world size.
        tensors: the rank's shards of the model, and their blocks.
        optimizers: the rank's optimizer states, from `read_optimizer`.
        blocks: the rank's block of each parameter of an optimizer, in order.
        metadata: metadata of the model's file.
        state: the caller's state, as in `save`; None if another rank writes it.
    """
    moments: dict[str, Tensor] = {}
    content = {"optimizers": split(optimizers, "optimizers", moments)}
    shards = {}
    for name, optimizer in optimizers.items():
        for number, entries in optimizer["state_dict"]["state"].items():
            for key, value in entries.items():
                path = f"optimizers/{name}/state_dict/state/{number}/{key}"
                if path in moments:
                    block = blocks[name][number]
                    if not value.ndim:
                        block = Block((), (), (), process[1], process[0])
                    shards[path] = (moments[path], block)
    assert shards.keys() == moments.keys(), "only states of parameters may have tensors"
    files = {}
    written, about = blocks_to_write(tensors)
    files[part_name(_MODEL, *process)] = (_copies(written), {**about, **metadata})
    written, about = blocks_to_write(shards)
    files[part_name(contents.OPTIMIZERS, *process)] = (_copies(written), about)
    if state is None:
        return Snapshot(step, files, None)
    state_tensors: dict[str, Tensor] = {}
    content["generators"] = split(rng.read_generators(), "generators", state_tensors)
    content["state"] = split(state, "state", state_tensors)
    files[contents.STATE] = (_copies(state_tensors), {})
    return Snapshot(step, files, json.dumps(content, indent=1))


def write(folder: str | Path, snapshot: Snapshot, keep: int) -> Path:
    """Write a snapshot as a checkpoint, and return its path.

    Raises:
        UserError: as `save`.
    """
    folder = Path(folder)
    begin(folder, snapshot.step, keep)
    return write_begun(folder, snapshot, keep)


def write_begun(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Write a snapshot after `begin`, possibly in another thread than training.

    If `folder` was removed in the meantime, it is not created again.

    Raises:
        UserError: writing fails; earlier checkpoints are unchanged.
    """
    try:
        seals = write_part(folder / f".tmp-{snapshot.step}", snapshot)
    except BaseException:
        give_up(folder, snapshot.step)
        raise
    return finish(folder, snapshot.step, seals, keep)


def begin(folder: Path, step: int, keep: int) -> Path:
    """Create the temporary folder of a checkpoint, and return it.

    Raises:
        UserError: as `save`.
    """
    _check_order(folder, step, keep)
    new = folder / f".tmp-{step}"
    with clear_errors(folder / f"step-{step}"):
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    return new


def write_part(folder: Path, snapshot: Snapshot) -> Seals:
    """Write a snapshot's files to the folder from `begin`; return their seals.

    Raises:
        UserError: writing fails.
    """
    with clear_errors(folder.with_name(f"step-{snapshot.step}")):
        for name, (tensors, about) in snapshot.files.items():
            values = snapshot.values if name == _MODEL else None
            weights.write_tensors(folder / name, tensors, about, values)
        names = [*snapshot.files]
        if snapshot.content is not None:
            names.append(contents.JSON)
            (folder / contents.JSON).write_text(snapshot.content)
        for name in names:
            sync(folder / name)
        return {
            name: {"bytes": (folder / name).stat().st_size, "sha256": _hash(folder / name)}
            for name in sorted(names)
        }


def finish(folder: Path, step: int, seals: Seals, keep: int) -> Path:
    """Publish a fully written checkpoint, remove old checkpoints, and return its path.

    Raises:
        UserError: writing fails; earlier checkpoints are unchanged.
    """
    new, target = folder / f".tmp-{step}", folder / f"step-{step}"
    with clear_errors(target):
        try:
            _seal(new, step, seals)
            _publish(new, target)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    drop_old(folder, step, keep)
    return target


def give_up(folder: Path, step: int) -> None:
    """Remove an unfinished checkpoint."""
    shutil.rmtree(folder / f".tmp-{step}", ignore_errors=True)


def _check_order(folder: Path, step: int, keep: int) -> None:
    if keep < 1:
        raise UserError(f"keep = {keep}: at least one checkpoint must be kept.")
    later = max(complete(folder), default=step)
    if later > step:
        raise UserError(
            f"{folder} has a checkpoint of step {later}, later than step {step}. "
            f"Resume from it, save to another folder, or remove it."
        )


def load(
    path: str | Path, *, model: nn.Module, optimizers: Mapping[str, Optimizer]
) -> dict[str, Any]:
    """Restore `model`, `optimizers` and the random number generators from a checkpoint.

    Returns the `state` passed to `save`. If it raises, nothing is changed.

    Raises:
        DamagedError: a file has a wrong size or hash, or is not a checkpoint's.
        UserError: names, shapes, dtypes, ties or optimizers differ; the message lists all differences.
    """
    path = Path(path)
    verify(path, hashes=True)
    if problems := [*weights.without_memory(model)]:
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    saved, content = weights.read_weights(path / _MODEL), contents.read(path)
    _check_fit(path, saved, content, model, optimizers)
    weights.put(saved, model)
    for name, optimizer in optimizers.items():
        with contents.invalid_as_damaged(path):
            _optimizers.put_optimizer(content["optimizers"][name], optimizer)
    rng.set_generators(content["generators"])
    state: dict[str, Any] = content["state"]
    return state


def check(
    path: str | Path, *, model: nn.Module, optimizers: Mapping[str, Optimizer]
) -> dict[str, Any]:
    """Restore the random number generators, and check that a checkpoint fits.

    `model` (possibly on the meta device) and `optimizers` are compared with the checkpoint, but not changed. Returns
    the `state` passed to `save`.

    Raises:
        UserError, DamagedError: as `load`.
    """
    path = Path(path)
    verify(path, hashes=True)
    content = contents.read(path, values=False)
    _check_fit(path, weights.described_weights(path / _MODEL), content, model, optimizers)
    rng.set_generators(content["generators"])
    state: dict[str, Any] = content["state"]
    return state


def _check_fit(
    path: Path,
    saved: weights.Weights,
    content: Mapping[str, Any],
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
) -> None:
    problems = [
        *weights.misfits(saved, model),
        *_optimizers.optimizer_misfits(content["optimizers"], optimizers, model),
    ]
    if problems:
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    for name, optimizer in optimizers.items():
        for problem in contents.problems(content["optimizers"][name]["state_dict"], optimizer):
            raise DamagedError(f"{path / contents.JSON} is damaged: {problem}.")


def names_of(model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Return tensor names and metadata of an unsharded checkpoint of `model`."""
    tensors, metadata = weights.described(weights.model_weights(model))
    return [*tensors], metadata


def parts_of(path: Path) -> tuple[Stored, Callable[[str, list[Block]], contents.OptimizerState]]:
    """Return readers of a checked checkpoint's weights and optimizer blocks."""
    return Stored(path / _MODEL), partial(contents.read_blocks, path)


def latest(folder: str | Path) -> Path | None:
    """Return the newest checkpoint with files of the right sizes; raises as `use_latest`."""
    return use_latest(folder, partial(verify, hashes=False))


def use_latest(folder: str | Path, use: Callable[[Path], object]) -> Path | None:
    """Call `use` with the newest intact checkpoint, and return its path.

    Checkpoints for which `use` raises DamagedError are skipped with a warning. Returns None without checkpoints.

    Raises:
        DamagedError: all checkpoints are damaged.
    """
    damages = []
    for path in reversed(_checkpoints(Path(folder)).values()):
        try:
            use(path)
        except DamagedError as damage:
            damages.append(str(damage))
        else:
            for line in damages:
                warnings.warn(f"{line} {path.name} is used instead.", stacklevel=2)
            return path
    if damages:
        last = (
            f"All checkpoints in {folder} are damaged. To start from scratch, remove that folder."
        )
        raise DamagedError(*damages, last)
    return None


def complete(folder: str | Path) -> dict[int, Path]:
    """Return the complete checkpoints in `folder` by step, oldest first.

    Raises:
        UserError: a checkpoint has another format.
    """
    checkpoints = {}
    for step, path in _checkpoints(Path(folder)).items():
        with contextlib.suppress(DamagedError):
            verify(path, hashes=False)
            checkpoints[step] = path
    return checkpoints


def verify(path: Path, *, hashes: bool) -> None:
    """Check the sizes, and optionally the hashes, of a checkpoint's files.

    Raises:
        DamagedError: a file is missing or differs; the message has its name.
        UserError: the checkpoint has another format.
    """
    for name, (expected, digest) in _read_seal(path).items():
        file = path / name
        if not file.is_file():
            raise DamagedError(f"{file} is missing.")
        if (size := file.stat().st_size) != expected:
            raise DamagedError(f"{file} is damaged: {size} bytes instead of {expected}.")
        if hashes and _hash(file) != digest:
            raise DamagedError(f"{file} is damaged: its hash is not the recorded one.")


def remove_stale(folder: str | Path) -> None:
    """Clean up after a killed process. Call it before the first `save`."""
    for path in _named(Path(folder), ".tmp-").values():
        shutil.rmtree(path, ignore_errors=True)
    _remove_removed(Path(folder))
    for step, path in _named(Path(folder), ".old-").items():
        target = path.with_name(f"step-{step}")
        with clear_errors(target):
            remove_folder(path) if target.exists() else path.rename(target)


def remove_after(folder: str | Path, step: int) -> None:
    """Remove the checkpoints after `step`."""
    for later, path in _checkpoints(Path(folder)).items():
        if later > step:
            with clear_errors(path):
                remove_folder(path)


def drop_old(folder: Path, step: int, keep: int) -> None:
    """Remove the checkpoints up to `step` except the newest `keep` complete ones."""
    newest = [saved for saved in complete(folder) if saved <= step][-keep:]
    for saved, path in _checkpoints(folder).items():
        if saved <= step and saved not in newest:
            with contextlib.suppress(OSError):  # the next call tries again
                remove_folder(path)
    _remove_removed(folder)


_MODEL = "model.safetensors"
_SEAL = "COMPLETE.json"
_FILES = (_MODEL, contents.OPTIMIZERS, contents.STATE, contents.JSON)


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _seal(folder: Path, step: int, seals: Seals) -> None:
    """Write COMPLETE.json and flush it to disk."""
    seal = {"format": FORMAT, "step": step, "files": dict(sorted(seals.items()))}
    (folder / _SEAL).write_text(json.dumps(seal, indent=1))
    sync(folder / _SEAL)
    sync(folder)


def _publish(new: Path, target: Path) -> None:
    """Rename `new` to `target`, with an existing checkpoint set aside in the meantime."""
    aside = target.with_name(f".old-{target.name.removeprefix('step-')}")
    replaces = target.exists()
    if replaces:
        remove_folder(aside)
        target.rename(aside)
    try:
        new.rename(target)
    except OSError:
        if replaces:
            aside.rename(target)
        raise
    sync(target.parent)
    if replaces:
        with contextlib.suppress(OSError):
            remove_folder(aside)


def _remove_removed(folder: Path) -> None:
    """Finish interrupted removals of checkpoints."""
    for path in folder.glob(".tmp-removed-*"):
        if re.fullmatch(r"\.tmp-removed-(step|old)-\d+", path.name):
            shutil.rmtree(path, ignore_errors=True)


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Return all checkpoints by step, oldest first, including damaged ones.

    A checkpoint that was set aside counts unless a new one has its place.
    """
    return dict(sorted((_named(folder, ".old-") | _named(folder, "step-")).items()))


def _named(folder: Path, prefix: str) -> dict[int, Path]:
    """Return the paths named by a prefix and a step, by step."""
    numbers = {path: path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*")}
    return {int(number): path for path, number in numbers.items() if number.isdecimal()}


def _read_seal(path: Path) -> dict[str, tuple[int, str]]:
    """Return the recorded size and hash of each file of a checkpoint."""
    try:
        seal = _Seal.model_validate_json((path / _SEAL).read_bytes())
    except FileNotFoundError as error:
        raise DamagedError(f"{path / _SEAL} is missing: no complete checkpoint.") from error
    except OSError as error:
        raise UserError(f"{path / _SEAL} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DamagedError(f"{path / _SEAL} is damaged.") from error
    check_format(path / _SEAL, seal.format)
    if missing := [name for name in _FILES if not is_whole(name, [*seal.files])]:
        raise DamagedError(f"{path / _SEAL} is damaged: it lacks {missing[0]}.")
    return {name: (file.bytes, file.sha256) for name, file in seal.files.items()}


class _Sealed(BaseModel, defer_build=True):
    bytes: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: str


class _Seal(BaseModel):
    model_config = ConfigDict(strict=True, defer_build=True)

    format: Annotated[int, Field(ge=0, lt=2**31)]
    files: dict[Annotated[str, Field(pattern=r"^[^/\\\x00]+$")], _Sealed]


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
