"""Process groups with one timeout, which are all closed at once when a run fails."""

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
"""Timeout of collectives."""
_FILES = Path("/dev/fd")
"""Folder with the open file descriptors of this process; missing on Windows."""
_sockets = dict[int, int]()
"""Sockets of groups: file descriptor -> inode, which differs after a descriptor is reused."""


def open_all(backend: str, store: Store, launch: Launch) -> None:
    """Connect all ranks of a run, the default group."""
    with _noting_sockets():
        dist.init_process_group(
            backend, store=store, rank=launch.rank, world_size=launch.size, timeout=PATIENCE
        )


def new_groups(ranks: Sequence[Sequence[int]]) -> dist.ProcessGroup | None:
    """Create groups; return the one with this rank, if any. All ranks create all groups."""
    with _noting_sockets():
        local: dist.ProcessGroup | None
        local, _ = dist.new_subgroups_by_enumeration(ranks, timeout=PATIENCE)
    return local


def new_mesh(device_type: str, axes: Mapping[str, int]) -> DeviceMesh:
    """Return a mesh of all ranks, in their order, with axes of these sizes."""
    # Not init_device_mesh, because it has a timeout of its own.
    names, places = tuple(axes), torch.arange(dist.get_world_size()).view(*axes.values())
    groups = []
    for axis in range(len(axes)):
        rows = places.movedim(axis, -1).reshape(-1, axes[names[axis]]).tolist()
        group = dist.group.WORLD if len(rows) == 1 else new_groups(rows)
        assert group is not None, "each rank has a group along each axis"
        groups.append(group)
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    return DeviceMesh.from_group(groups, device_type, places, mesh_dim_names=names)


def close() -> bool:
    """Shut down the sockets of all groups; return False if the system does not list them.

    Torch closes a gloo group when Python deletes its last reference, but meshes, modules and tracebacks keep some;
    `ProcessGroup.abort` leaves the peers of a gloo group waiting (torch 2.13). After a shutdown of the sockets, pending
    and later operations of other ranks raise at once.
    """
    for number, node in _sockets.items():
        with contextlib.suppress(OSError):  # already closed
            _shut_down(number, node)
    _sockets.clear()
    return _FILES.is_dir()


def destroy() -> None:
    """Destroy torch's groups, so that new ones can be created."""
    _sockets.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def _noting_sockets() -> Iterator[None]:
    """Record the sockets that the block opens."""
    before = _open_sockets()
    try:
        yield
    finally:
        _sockets.update(_open_sockets().items() - before.items())


def _open_sockets() -> dict[int, int]:
    sockets = dict[int, int]()
    for file in _FILES.iterdir() if _FILES.is_dir() else ():
        with contextlib.suppress(OSError):  # closed by now, such as the descriptor of the folder
            status = os.fstat(number := int(file.name))
            if stat.S_ISSOCK(status.st_mode):
                sockets[number] = status.st_ino
    return sockets


def _shut_down(number: int, node: int) -> None:
    with socket.socket(fileno=os.dup(number)) as duplicate:
        is_same = os.fstat(duplicate.fileno()).st_ino == node
        # After a shutdown of a listening socket, its thread would end the process.
        if is_same and not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            duplicate.shutdown(socket.SHUT_RDWR)
