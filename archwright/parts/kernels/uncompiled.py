"""What the compiler calls as it is. To be imported where it is at work, as `disable` loads all of it."""

from collections.abc import Callable

import torch

from archwright.parts.kernels.blockwise import Block, cut
from archwright.parts.masks import View

cut_uncompiled: Callable[[View, torch.dtype], list[Block]] = torch.compiler.disable(cut)
