"""What the compiler calls as it is. To be imported where it is at work, as `disable` loads all of it."""

from typing import Any

import torch

from archwright.parts.kernels.blocks import blocks_of as _blocks_of
from archwright.parts.kernels.blockwise import by_autograd as _by_autograd

blocks_of: Any = torch.compiler.disable(_blocks_of)
by_autograd: Any = torch.compiler.disable(_by_autograd)
