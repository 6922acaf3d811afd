"""What the compiler calls as it is. To be imported where it is at work, as `disable` loads all of it."""

import torch

from archwright.parts.kernels.blockwise import cut

cut_uncompiled = torch.compiler.disable(cut)
