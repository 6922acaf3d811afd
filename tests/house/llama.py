"""How many files one reads to see how a Llama's attention is computed.

A tiny Llama reads a few tokens, without a cache and with the kernel that it has by default. Counted are the package's
files in which a function ran from the model's call to the end of its attention: the wiring, maps, rotations, masks and
the kernel. The embedding's file and that of norms are left out, as they compute something else.
"""

import sys
from pathlib import Path
from types import FrameType

from tests.house.source import PACKAGE, Count

BRANCH = "layers.0.attention"
"""The module whose arithmetic is looked for, by the name that its weights have."""
ASIDE = (f"{PACKAGE}/parts/embeddings.py", f"{PACKAGE}/parts/norms.py")
ASSIGNMENTS = (
    *("dim=64", "num_layers=1", "vocab_size=64"),
    *("attention.num_heads=4", "attention.num_kv_heads=2", "attention.head_dim=16"),
)


def counts() -> list[Count]:
    """Return the row, with the files in the order in which they are met."""
    return [Count.of("files to the arithmetic of a Llama's attention", files(), "at most 11")]


def files() -> list[str]:
    """Return the files that are read on the way to a Llama's attention, and in it."""
    import torch

    import archwright

    model = archwright.build(archwright.load("llama-3.2-1b").override(*ASSIGNMENTS))
    met: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := _file(frame)):
            met.setdefault(name)

    before = sys.getprofile()
    model.get_submodule(BRANCH).register_forward_hook(lambda *_: sys.setprofile(before))
    sys.setprofile(watch)
    try:
        model(torch.arange(8)[None])
    finally:
        sys.setprofile(before)
    return [name for name in met if name not in ASIDE]


def _file(frame: FrameType) -> str:
    """Return the file of a frame from the package's folder on, or nothing where it is another's."""
    path = Path(frame.f_code.co_filename)
    if PACKAGE not in path.parts or "site-packages" in path.parts:
        return ""
    return "/".join(path.parts[len(path.parts) - 1 - path.parts[::-1].index(PACKAGE) :])
