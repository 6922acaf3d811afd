"""How this process gets memory from the system."""

import ctypes
import platform

KEPT = 2**31 - 1
"""Freed bytes at the end of the heap that are kept for the next allocation, the most glibc can take."""

GROWTH = 2**28
"""Bytes by which the heap grows at a time."""


LARGE = 2**24
"""Bytes from which a tensor of one of several processes has pages of its own, which go back when it is freed."""


def tune_allocator(*, shares: bool = False) -> bool:
    """Let the C library keep freed memory for the next step; return whether it took the settings.

    By default glibc gives every large tensor fresh pages and returns them when it is freed, so that each
    training step pays again for the page faults of all its activations. Only glibc has these settings;
    elsewhere nothing is changed. They hold for the whole process, so only a process of our own calls this,
    at its start, never an import.

    Args:
        shares: whether the process shares a run with others. Large tensors then come from the system and go back: the
            parameters that are gathered for each layer would not find together in a heap whose holes small tensors
            have settled in, which would grow to hold all layers, as if nothing were shared.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # names and numbers of malloc.h
    m_trim_threshold, m_top_pad, m_mmap_threshold, m_mmap_max = -1, -2, -3, -4
    settings = {m_trim_threshold: KEPT, m_top_pad: GROWTH}
    settings |= {m_mmap_threshold: LARGE} if shares else {m_mmap_max: 0}
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(taken)
