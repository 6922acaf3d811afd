"""States of the global random number generators of torch, NumPy and Python."""

from __future__ import annotations

import random
from typing import Any


def read_generators() -> dict[str, Any]:
    """Return the states of torch's (CPU and CUDA), NumPy's and Python's generators."""
    import numpy as np
    import torch

    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        # A state per device; empty before CUDA is initialized, because the query would initialize it.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": np.random.get_state(legacy=False),
        "python": (version, np.array(words, dtype=np.uint32), gauss),
    }


def set_generators(state: dict[str, Any]) -> None:
    """Restore the states from `read_generators`."""
    import numpy as np
    import torch

    torch.set_rng_state(state["torch"])
    for device, value in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(value, device)
    np.random.set_state(state["numpy"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
