"""Laws of norms, tried on the last norm of a small model."""

import torch
from torch import Tensor, nn

from archwright.testing.case import ROWS, Case
from archwright.testing.law import Broken
from archwright.testing.model_laws import CAST, DTYPES

ALL_DTYPES = {**DTYPES, "float16": torch.float16}


def keeps_dtype(case: Case) -> None:
    """A norm returns the dtype of its input, also under autocast."""
    norm, drawn = _norm_and_vectors(case)
    for name, dtype in ALL_DTYPES.items():
        x = drawn.to(dtype)
        for is_autocast in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
                returned = norm(x).dtype
            if returned != dtype:
                where = " under bfloat16 autocast" if is_autocast else ""
                raise Broken(f"{returned} for {name}{where}; {CAST}")


def is_finite(case: Case) -> None:
    """A norm of a finite vector is finite, including zeros."""
    norm, drawn = _norm_and_vectors(case)
    for dtype in ALL_DTYPES.values():
        x = drawn.to(dtype)
        for what, vectors in (("random numbers", x), ("zeros", torch.zeros_like(x))):
            if not norm(vectors).isfinite().all():
                raise Broken(f"not finite for {what}; add a small eps to what is divided by")


def _norm_and_vectors(case: Case) -> tuple[nn.Module, Tensor]:
    """Return the last norm of a model and random inputs [rows, length, dim]."""
    generator = torch.Generator().manual_seed(case.seed)
    return case.built().norm, torch.randn(ROWS, 3, case.spec.dim, generator=generator)
