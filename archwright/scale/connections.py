"""Groups of processes and their connections: all wait for others equally long, and all are closed at once where a run
fails."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Store

from archwright.scale.launch import Launch

PATIENCE = timedelta(minutes=30)
"""Time that a process waits for the others in a step."""
_FILES = Path("/dev/fd")
"""Where the open files of this process are listed; Windows has no such place."""
_sockets = dict[int, int]()
"""Sockets that groups have opened, by number, and what each is: a number is given again."""


def open_all(backend: str, store: Store, launch: Launch) -> None:
    """Connect all processes of a run, which become the default group."""
    with _noting_sockets():
        dist.init_process_group(
            backend, store=store, rank=launch.rank, world_size=launch.size, timeout=PATIENCE
        )


def new_groups(ranks: Sequence[Sequence[int]]) -> dist.ProcessGroup | None:
    """Return that of several new groups of which this process is one, if any; all processes make all of them."""
    with _noting_sockets():
        own: dist.ProcessGroup | None
        own, _ = dist.new_subgroups_by_enumeration(ranks, timeout=PATIENCE)
    return own


def new_mesh(device_type: str, axes: Mapping[str, int]) -> DeviceMesh:
    """Return all processes as a grid with axes of such lengths, in order of their numbers."""
    # What torch makes by itself, init_device_mesh, waits as long as torch thinks right.
    names, places = tuple(axes), torch.arange(dist.get_world_size()).view(*axes.values())
    groups = []
    for axis in range(len(axes)):
        rows = places.movedim(axis, -1).reshape(-1, axes[names[axis]]).tolist()
        own = dist.group.WORLD if len(rows) == 1 else new_groups(rows)
        assert own is not None, "each process stands in a row of each axis"
        groups.append(own)
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    return DeviceMesh.from_group(groups, device_type, places, mesh_dim_names=names)


def close() -> bool:
    """Close all connections on a way that leaves others no time to wait; return whether they could be.

    Torch closes a group of gloo's when nothing in Python knows it any more, but meshes, modules and tracebacks do. So
    the sockets are shut down below it: what others wait for, or begin, on any of them raises at once.
    """
    for number, node in _sockets.items():
        with contextlib.suppress(OSError):  # it is closed already
            _shut_down(number, node)
    _sockets.clear()
    return _FILES.is_dir()


def destroy() -> None:
    """Let torch forget all groups, so that there can be others."""
    _sockets.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def _noting_sockets() -> Iterator[None]:
    """Take down the sockets that the block opens."""
    before = _open_sockets()
    try:
        yield
    finally:
        _sockets.update(_open_sockets().items() - before.items())


def _open_sockets() -> dict[int, int]:
    found = dict[int, int]()
    for file in _FILES.iterdir() if _FILES.is_dir() else ():
        with contextlib.suppress(OSError):  # such as the list itself, which is closed by now
            about = os.fstat(number := int(file.name))
            if stat.S_ISSOCK(about.st_mode):
                found[number] = about.st_ino
    return found


def _shut_down(number: int, node: int) -> None:
    with socket.socket(fileno=os.dup(number)) as found:
        is_same = os.fstat(found.fileno()).st_ino == node
        # The thread that takes connections on another kind of socket would end the process.
        if is_same and not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.shutdown(socket.SHUT_RDWR)
