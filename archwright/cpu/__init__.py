"""Everything that exists for a CPU: the blockwise kernel, transposed products, settings of the process."""

from archwright.cpu.process import prepare_process

__all__ = ["prepare_process"]
