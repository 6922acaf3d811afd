"""The state of every random number generator that a program uses without naming one."""

from __future__ import annotations

import random
from typing import Any


def read_generators() -> dict[str, Any]:
    """Return the states of torch's CPU and CUDA, numpy's and Python's global generators."""
    import numpy as np
    import torch

    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        # A state for each device; none where CUDA was not used, as asking would start it.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": np.random.get_state(legacy=False),
        "python": (version, np.array(words, dtype=np.uint32), gauss),
    }


def set_generators(state: dict[str, Any]) -> None:
    """Continue the random numbers where `read_generators` found them."""
    import numpy as np
    import torch

    torch.set_rng_state(state["torch"])
    for device, value in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(value, device)
    np.random.set_state(state["numpy"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
