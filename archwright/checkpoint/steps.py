"""Checkpoints of a training: a folder with one folder for each saved step.

    step-100/model.safetensors        the module, tied tensors once
    step-100/optimizers.safetensors   the tensors of the optimizers
    step-100/state.safetensors        the tensors of the generators and of the caller's state
    step-100/state.json               all that is not a tensor
    step-100/COMPLETE.json            sizes and hashes of the files; written last

Where several processes train, each writes a part of the first two: `archwright.checkpoint.parts` has how.

A checkpoint is written under a hidden name, flushed, and renamed: whatever instant the process dies
at, every folder with a COMPLETE.json is whole.
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
from archwright.checkpoint.parts import Stored, is_whole, own_blocks, part_name
from archwright.checkpoint.tree import split
from archwright.files import DamagedError, clear_errors, remove_folder, sync
from archwright.scale.layout import Block
from archwright.spec.errors import UserError
from archwright.spec.version import FORMAT, check_format

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Seals = dict[str, dict[str, Any]]
"""Size and hash of files by name, as COMPLETE.json has them."""


def save(
    folder: str | Path,
    step: int,
    *,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    state: Mapping[str, object],
    keep: int,
) -> Path:
    """Save a checkpoint of `step`, drop all but the newest `keep`, and return its path.

    The states of the global random number generators are saved too. `state` is anything made of
    numbers, text, lists, tuples, mappings, tensors and arrays.

    Raises:
        UserError: the disk refuses, the folder has a complete checkpoint of a later step, or
            `state` holds something else; the earlier checkpoints are then untouched.
    """
    snapshot = take(step, model=model, optimizers=optimizers, state=state, copies=False)
    return write(folder, snapshot, keep)


class Snapshot(NamedTuple):
    """What a checkpoint of a step is made of."""

    step: int
    files: dict[str, tuple[dict[str, Tensor], dict[str, str]]]
    """Tensors and metadata of each safetensors file."""
    content: str | None
    """All that is not a tensor, as JSON; None where another process writes it."""
    values: weights.Values | None = None
    """Of the model, where its tensors are on the meta device."""


def take(
    step: int,
    *,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    state: Mapping[str, object],
    copies: bool = True,
) -> Snapshot:
    """Return what `save` would write now; as copies, in the memory of the CPU, it stays so while training goes on.

    Raises:
        UserError: `state` holds what cannot be saved.
    """
    moments = {name: _optimizers.read_optimizer(o, model) for name, o in optimizers.items()}
    optimizer_tensors: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    content = {
        "optimizers": split(moments, "optimizers", optimizer_tensors),
        "generators": split(rng.read_generators(), "generators", others),
        "state": split(state, "state", others),
    }
    files = {
        _MODEL: weights.described(weights.model_weights(model)),
        contents.OPTIMIZERS: (optimizer_tensors, {}),
        contents.STATE: (others, {}),
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
    """Return copies of what one of several processes writes of a checkpoint.

    Args:
        process: its number, and how many there are.
        tensors: what it holds of the model.
        optimizers: its optimizers, as `read_optimizer` returns them.
        blocks: what it holds of each parameter of an optimizer, in their order.
        metadata: what the model says beside its tensors.
        state: that of `save`; None where another process writes it.
    """
    moments: dict[str, Tensor] = {}
    content = {"optimizers": split(optimizers, "optimizers", moments)}
    held = {}
    for name, optimizer in optimizers.items():
        for number, kept in optimizer["state_dict"]["state"].items():
            for key, value in kept.items():
                path = f"optimizers/{name}/state_dict/state/{number}/{key}"
                if path in moments:
                    block = blocks[name][number]
                    if not value.ndim:
                        block = Block((), (), (), process[1], process[0])
                    held[path] = (moments[path], block)
    assert held.keys() == moments.keys(), "nothing but states of parameters is a tensor"
    files = {}
    own, about = own_blocks(tensors)
    files[part_name(_MODEL, *process)] = (_copies(own), {**about, **metadata})
    own, about = own_blocks(held)
    files[part_name(contents.OPTIMIZERS, *process)] = (_copies(own), about)
    if state is None:
        return Snapshot(step, files, None)
    others: dict[str, Tensor] = {}
    content["generators"] = split(rng.read_generators(), "generators", others)
    content["state"] = split(state, "state", others)
    files[contents.STATE] = (_copies(others), {})
    return Snapshot(step, files, json.dumps(content, indent=1))


def write(folder: str | Path, snapshot: Snapshot, keep: int) -> Path:
    """Write a checkpoint, as `save` does.

    Raises:
        UserError: as `save` does.
    """
    folder = Path(folder)
    begin(folder, snapshot.step, keep)
    return write_begun(folder, snapshot, keep)


def write_begun(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Write a checkpoint that was begun; it may be done by another thread than the one that trains. A folder that was
    removed meanwhile is not made again.

    Raises:
        UserError: the disk refuses; the earlier checkpoints are then untouched.
    """
    try:
        seals = write_part(folder / f".tmp-{snapshot.step}", snapshot)
    except BaseException:
        give_up(folder, snapshot.step)
        raise
    return finish(folder, snapshot.step, seals, keep)


def begin(folder: Path, step: int, keep: int) -> Path:
    """Begin a checkpoint, and return the folder for what is written of it.

    Raises:
        UserError: as `save` does.
    """
    _check_order(folder, step, keep)
    new = folder / f".tmp-{step}"
    with clear_errors(folder / f"step-{step}"):
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    return new


def write_part(folder: Path, snapshot: Snapshot) -> Seals:
    """Write what a process has of a checkpoint into a folder that was begun, and return what a seal says of it.

    Raises:
        UserError: the disk refuses.
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
    """Let a checkpoint count of which all is written, drop old ones, and return its path; for who began it.

    Raises:
        UserError: the disk refuses; the earlier checkpoints are then untouched.
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
    """Remove what was written of a checkpoint."""
    shutil.rmtree(folder / f".tmp-{step}", ignore_errors=True)


def _check_order(folder: Path, step: int, keep: int) -> None:
    if keep < 1:
        raise UserError(f"keep = {keep}: at least one checkpoint must be kept.")
    later = max(complete(folder), default=step)
    if later > step:
        raise UserError(
            f"{folder} has a checkpoint of step {later}, later than step {step} which is to be "
            f"saved. Resume from it, save to another folder, or remove it."
        )


def load(
    path: str | Path, *, model: nn.Module, optimizers: Mapping[str, Optimizer]
) -> dict[str, Any]:
    """Set `model`, `optimizers` and the random number generators as they were saved at `path`.

    Returns the state that was given to `save`. When it raises, nothing was changed.

    Raises:
        DamagedError: a file's size or hash is wrong, or its content is none of a checkpoint.
        UserError: names, shapes, dtypes, ties or optimizers that do not fit, one line each.
    """
    path = Path(path)
    verify(path, hashes=True)
    if problems := [*weights.without_memory(model)]:
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    saved, content = weights.read_weights(path / _MODEL), contents.read(path)
    _check_fit(path, saved, content, model, optimizers)
    weights.put(saved, model)
    for name, optimizer in optimizers.items():
        with contents.taken_for_damage(path):
            _optimizers.put_optimizer(content["optimizers"][name], optimizer)
    rng.set_generators(content["generators"])
    state: dict[str, Any] = content["state"]
    return state


def check(
    path: str | Path, *, model: nn.Module, optimizers: Mapping[str, Optimizer]
) -> dict[str, Any]:
    """Set the random number generators as they were saved at `path`, and return the state that was given to `save`;
    model and optimizers are compared with what `load` would set, and left as they are. The model may be on the meta
    device.

    Raises:
        UserError, DamagedError: as `load` does.
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
    """Return the names of the tensors that a checkpoint of a whole model has, and what it says beside them."""
    tensors, metadata = weights.described(weights.model_weights(model))
    return [*tensors], metadata


def parts_of(path: Path) -> tuple[Stored, Callable[[str, list[Block]], contents.Own]]:
    """Return the weights of a checkpoint that was checked, to read blocks of, and what reads those of an optimizer."""
    return Stored(path / _MODEL), partial(contents.read_own, path)


def latest(folder: str | Path) -> Path | None:
    """Return the newest checkpoint in `folder` whose files have the right sizes, as `use_latest` does."""
    return use_latest(folder, partial(verify, hashes=False))


def use_latest(folder: str | Path, use: Callable[[Path], object]) -> Path | None:
    """Call `use` with the newest complete checkpoint that it does not find damaged, and return that.

    A damaged checkpoint is passed over with a warning. None where there is no checkpoint.

    Raises:
        DamagedError: there are checkpoints, but none of them is whole.
    """
    damages = []
    for path in reversed(_found(Path(folder)).values()):
        try:
            use(path)
        except DamagedError as damage:
            damages.append(str(damage))
        else:
            for line in damages:
                warnings.warn(f"{line} {path.name} is used instead.", stacklevel=2)
            return path
    if damages:
        last = f"No checkpoint in {folder} is whole. To start from scratch, remove that folder."
        raise DamagedError(*damages, last)
    return None


def complete(folder: str | Path) -> dict[int, Path]:
    """Return the checkpoints in `folder` whose files are all there, by step, oldest first.

    Raises:
        UserError: one of them is of another format.
    """
    whole = {}
    for step, path in _found(Path(folder)).items():
        with contextlib.suppress(DamagedError):
            verify(path, hashes=False)
            whole[step] = path
    return whole


def verify(path: Path, *, hashes: bool) -> None:
    """Check that the files of the checkpoint at `path` are as they were written.

    Raises:
        DamagedError: one is not; the message names it.
        UserError: the checkpoint is of another format.
    """
    for name, (expected, digest) in _read_seal(path).items():
        file = path / name
        if not file.is_file():
            raise DamagedError(f"{file} is missing.")
        if (size := file.stat().st_size) != expected:
            raise DamagedError(f"{file} is damaged: {size} bytes instead of {expected}.")
        if hashes and _hash(file) != digest:
            raise DamagedError(f"{file} is damaged: its content is not what was written.")


def remove_stale(folder: str | Path) -> None:
    """Clear away what a killed process left half done; call it before the first `save`."""
    for path in _named(Path(folder), ".tmp-").values():
        shutil.rmtree(path, ignore_errors=True)
    _remove_removed(Path(folder))
    for step, path in _named(Path(folder), ".old-").items():
        target = path.with_name(f"step-{step}")
        with clear_errors(target):
            remove_folder(path) if target.exists() else path.rename(target)


def remove_after(folder: str | Path, step: int) -> None:
    """Remove the checkpoints of later steps than `step`, which a resumed run makes again."""
    for later, path in _found(Path(folder)).items():
        if later > step:
            with clear_errors(path):
                remove_folder(path)


def drop_old(folder: Path, step: int, keep: int) -> None:
    """Keep the newest `keep` complete checkpoints up to `step`; those of later steps stay."""
    kept = [found for found in complete(folder) if found <= step][-keep:]
    for found, path in _found(folder).items():
        if found <= step and found not in kept:
            with contextlib.suppress(OSError):  # the new one is safe; this may wait
                remove_folder(path)
    _remove_removed(folder)


_MODEL = "model.safetensors"
_SEAL = "COMPLETE.json"
_FILES = (_MODEL, contents.OPTIMIZERS, contents.STATE, contents.JSON)


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _seal(folder: Path, step: int, seals: Seals) -> None:
    """Say in COMPLETE.json what the files of `folder` are, and flush that."""
    seal = {"format": FORMAT, "step": step, "files": dict(sorted(seals.items()))}
    (folder / _SEAL).write_text(json.dumps(seal, indent=1))
    sync(folder / _SEAL)
    sync(folder)


def _publish(new: Path, target: Path) -> None:
    """Rename `new` to `target`; a checkpoint that was there is set aside until that is done."""
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
    """Remove what is left of checkpoints whose removal was cut off."""
    for path in folder.glob(".tmp-removed-*"):
        if re.fullmatch(r"\.tmp-removed-(step|old)-\d+", path.name):
            shutil.rmtree(path, ignore_errors=True)


def _found(folder: Path) -> dict[int, Path]:
    """Return all checkpoints by step, oldest first, whole or not.

    One that was set aside counts where a killed process put no other in its place.
    """
    return dict(sorted((_named(folder, ".old-") | _named(folder, "step-")).items()))


def _named(folder: Path, prefix: str) -> dict[int, Path]:
    """Return what is named by a step behind a prefix, by step."""
    numbers = {path: path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*")}
    return {int(number): path for path, number in numbers.items() if number.isdecimal()}


def _read_seal(path: Path) -> dict[str, tuple[int, str]]:
    """Return the size and hash that each file of the checkpoint should have."""
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
