"""How this process gets memory from the system."""

import ctypes
import platform

KEPT = 2**31 - 1
"""Freed bytes at the end of the heap that are kept for the next allocation, the most glibc can take."""

GROWTH = 2**28
"""Bytes by which the heap grows at a time."""


def tune_allocator() -> bool:
    """Let the C library keep freed memory for the next step; return whether it took the settings.

    By default glibc gives every large tensor fresh pages and returns them when it is freed, so that each
    training step pays again for the page faults of all its activations. Only glibc has these settings;
    elsewhere nothing is changed. They hold for the whole process, so only a process of our own calls this,
    at its start, never an import.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # names and numbers of malloc.h
    settings = {m_mmap_max: 0, m_trim_threshold: KEPT, m_top_pad: GROWTH}
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(taken)
