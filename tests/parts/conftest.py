"""Kernels that other rooms register."""

import archwright.cpu.blockwise  # noqa: F401
