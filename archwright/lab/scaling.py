"""What size, rate and text an experiment with small models has."""

import math

from archwright.spec.narrow import narrowed
from archwright.spec.run_spec import RunSpec

DIMS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)

EXPERTS = 8
"""Most experts that a token chooses from, as few of more would be trained by a short run."""

RECIPE = (
    "schedule.kind=linear",
    "evaluate.max_tokens=8192",
)
"""How small models are trained well: the rate falls to nothing."""


def shape(size: float) -> tuple[int, int]:
    """Return width and number of layers of about `size` = 12 num_layers dim^2 parameters.

    Of the widths there are, the one whose size and proportion are nearest: dim / num_layers of 16 at 0.2M
    parameters, growing with the fourth root of the size, as published models grow wider faster than deeper.
    """
    proportion = 16 * (size / 2e5) ** 0.25

    def fit(dim: int) -> tuple[int, float]:
        num_layers = max(2, round(size / (12 * dim**2)))
        off = abs(math.log(12 * num_layers * dim**2 / size))
        return num_layers, off + 0.3 * abs(math.log(dim / num_layers / proportion))

    dim = min(DIMS, key=lambda dim: fit(dim)[1])
    return dim, fit(dim)[0]


def scaled(run: RunSpec, size: float) -> RunSpec:
    """Return a run whose model has about `size` parameters outside embedding and head.

    Below 1M parameters the vocabulary has 1,024 tokens, so that little of the model is embedding, then
    4,096. Heads have 32 dimensions (64 from a width of 256). Texts are 128 tokens long below 1M parameters,
    256 below 10M, then 512, and a step reads 16 of them. The learning rate starts at 0.01 (64 / dim)^1/2.
    """
    dim, num_layers = shape(size)
    context = 128 if size < 1e6 else 256 if size < 1e7 else 512
    small = narrowed(run.model, dim, 32 if dim < 256 else 64, num_layers, context, EXPERTS)
    optimizer = run.optimizer.model_copy(update={"lr": _two_digits(0.01 * (64 / dim) ** 0.5)})
    small_run = run.model_copy(update={"model": small, "optimizer": optimizer, "batch_size": 16})
    return small_run.override(f"data.tokenizer.vocab_size={1024 if size < 1e6 else 4096}")


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
