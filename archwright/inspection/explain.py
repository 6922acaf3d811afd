"""Formulas and small numeric examples of choices.

Numbers are computed on demand from small random tensors.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from archwright.format import count, size
from archwright.model import build
from archwright.optim.schedules import learning_rate
from archwright.parts.feedforward import ACTIVATIONS
from archwright.parts.kernels import ScoreMods
from archwright.parts.kernels.eager import eager
from archwright.parts.masks import AttentionMask, pattern_of
from archwright.parts.mixers import AttentionMixer
from archwright.parts.norms import NORMS
from archwright.planning.cost import forward_flops
from archwright.planning.memory import cache_bytes
from archwright.plugins import registry_of
from archwright.spec.choice import Choice
from archwright.spec.errors import UserError
from archwright.spec.masks import Mask
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

TEXT = 16
"""Tokens of the example sequences."""
SHIFT = 7
"""Shift of all positions in the example."""
DEPTHS = (1, 2, 4, 8, 16)
"""Layers after which the residual stream is measured."""


@dataclass(frozen=True)
class Numbers:
    """A table that illustrates a choice."""

    about: str
    rows: Sequence[Sequence[str]]
    """Header row, then values."""


_ARGUMENTS = re.compile(r"^(?:Args|Attributes|Raises):", re.MULTILINE)

Words = Sequence[str]
"""Assignments that select a choice, with paths of a model spec."""


def formula(choice: type[Choice]) -> str:
    """Return the docstring of a choice's part without its arguments; empty without a part."""
    registry = registry_of(choice)
    part = None if registry is None else registry.of(choice)
    part = part.func if isinstance(part, partial) else part
    text = "" if part is None else inspect.getdoc(part) or ""
    return " ".join(_ARGUMENTS.split(text)[0].split())


def numbers_of_kind(choice: type[Choice], words: Words) -> list[Numbers]:
    """Return example tables of a choice. Return none if rules reject the example model."""
    if choice.axis not in AXES:
        return []
    tables = [activation(choice)] if choice in ACTIVATIONS else []
    try:
        return [*tables, AXES[choice.axis](choice, words)]
    except UserError:
        return tables


def small(*words: str) -> ModelSpec:
    """Return the spec of a small model with some assignments."""
    plain = ModelSpec(dim=64, num_layers=1, vocab_size=128, context_length=64)
    return plain.override("attention.num_heads=4", *words)


def scores_of(model: Any, tokens: Tensor, **layout: Tensor) -> Tensor:
    """Return the attention scores of the first layer before masks and softmax, [batch, heads, queries, keys]."""
    seen: list[Tensor] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, view: AttentionMask, mods: ScoreMods) -> Tensor:
        keys = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
        products = torch.einsum("bqhd,bkhd->bhqk", q, keys)
        bias = None if mods.bias is None else mods.bias.block(0, q.shape[1], 0, k.shape[1])
        seen.append(mods.scores(products, None, bias))
        return eager(q, k, v, view, mods)

    for mixer in model.modules():
        if isinstance(mixer, AttentionMixer):
            mixer.kernel = mixer.kernel._replace(run=kernel)
    with torch.no_grad():
        model(tokens, **layout)
    return seen[0]


def position(choice: type[Choice], words: Words) -> Numbers:
    """Measure the change of attention scores under shifted and reversed positions."""
    spec = small(*words)
    model = build(spec, seed=0).double().eval()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 128, (1, TEXT), generator=generator)
    with torch.no_grad():
        for weight in model.parameters():  # zero initialisation would hide effects
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(0.3 * noise)
    here = torch.arange(TEXT)[None]
    first, moved = (scores_of(model, tokens, position_ids=here + by) for by in (0, SHIFT))
    swapped = scores_of(model, tokens, position_ids=here.flip(-1))
    spread = float(first.std())

    def largest(other: Tensor) -> str:
        return f"{float((other - first).abs().max()) / spread:.2g}"

    return Numbers(
        f"Scores of a query with a key, {TEXT} random tokens, random weights. Largest change, in standard deviations "
        "of the scores:",
        [
            ("what happens", "largest change"),
            (f"all positions grow by {SHIFT}", largest(moved)),
            ("positions are reversed", largest(swapped)),
        ],
    )


def norm(choice: type[Choice], words: Words) -> Numbers:
    """Measure the output of a norm for scaled and shifted inputs."""
    spec = small(*words)
    part = NORMS.make(spec.norm, 64).double()
    x = 1 + 2 * torch.randn(512, 64, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        y, scaled, shifted = part(x), part(3 * x), part(x + 5)

    def moments(t: Tensor) -> tuple[str, str]:
        return f"{float(t.mean()):.3g}", f"{float(t.square().mean().sqrt()):.3g}"

    def change(t: Tensor) -> str:
        return f"{float((t - y).abs().max()):.2g}"

    return Numbers(
        "512 vectors of width 64, normal with mean 1 and standard deviation 2, at the start of training:",
        [
            ("", "mean", "root mean square", "largest change of the result"),
            ("what it reads, x", *moments(x), ""),
            ("its result", *moments(y), ""),
            ("of 3 x", *moments(scaled), change(scaled)),
            ("of x + 5", *moments(shifted), change(shifted)),
        ],
    )


def mask(choice: type[Choice], words: Words) -> Numbers:
    """Draw the visible keys of each query, with sizes that hide some keys."""
    fields = choice.model_fields
    sizes = {
        **{"size": 5, "radius": 3, "stride": 4, "memory": 4, "num_global": 2, "num_summary": 1},
        "block_size": 2 if "local_blocks" in fields or "num_random" in fields else 4,
        **{"local_blocks": 2, "num_random": 1},
    }
    options = {name: number for name, number in sizes.items() if name in fields}
    pattern = pattern_of(cast(Mask, choice.model_validate(options)), 1)
    at = torch.arange(TEXT)
    seen = pattern.visible(at[:, None], at)
    listed = ", ".join(f"{name}={number}" for name, number in options.items())
    rows = [
        ("query", "keys 0 to 15"),
        *((str(i), " ".join("·■"[see] for see in row)) for i, row in enumerate(seen.tolist())),
    ]
    shown = int(seen.sum())
    about = f"Keys that each query sees{f', with {listed}' if listed else ''}: {shown} of {TEXT * TEXT} pairs."
    return Numbers(about, rows)


def residual(choice: type[Choice], words: Words) -> Numbers:
    """Measure the residual stream after some layers of an untrained model."""
    model = build(small(*words).override(f"num_layers={DEPTHS[-1]}"), seed=0).eval()
    tokens = torch.randint(0, 128, (4, 64), generator=torch.Generator().manual_seed(0))
    sizes: list[float] = []

    def look(module: Any, inputs: Any, out: Any) -> None:
        stream = out if isinstance(out, Tensor) else out[0]
        sizes.append(float(stream.float().square().mean().sqrt()))

    hooks = [layer.register_forward_hook(look) for layer in model.layers]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return Numbers(
        "Root mean square of the stream of 64 random tokens, before training:",
        [
            ("behind layer", *map(str, DEPTHS)),
            ("stream", *(f"{sizes[depth - 1]:.3g}" for depth in DEPTHS)),
        ],
    )


def feedforward(choice: type[Choice], words: Words) -> Numbers:
    """Count the parameters and FLOPs of a feed-forward layer."""
    model = build(small(*words, "dim=512"), device="meta")
    layer: Any = model.layers[0]
    if "feedforward" not in layer.branches:
        raise UserError("it has no feed-forward")
    spec = model.spec.resolved().layers_by_kind["default"].feedforward
    hidden = spec.hidden_layer
    width = "" if hidden is None else str(hidden.model_dump()["hidden_dim"])
    parameters = sum(p.numel() for p in layer.branch("feedforward").parameters())
    costs = forward_flops(model, TEXT).items()
    flops = sum(value for name, value in costs if name.startswith("layers.feedforward"))
    return Numbers(
        "At width 512, with the sizes that follow from it:",
        [
            ("d_ff", "parameters of a layer", "FLOPs per token, forward"),
            (width, count(parameters), count(flops)),
        ],
    )


def activation(choice: type[Choice]) -> Numbers:
    """Tabulate an activation function and its slope."""
    x = torch.tensor([-4.0, -2, -1, -0.5, 0, 0.5, 1, 2, 4], dtype=torch.float64, requires_grad=True)
    y = ACTIVATIONS.make(choice())(x)
    (slope,) = torch.autograd.grad(y.sum(), x)

    def numbers(values: Tensor) -> list[str]:
        return [f"{value:.3g}" for value in values.tolist()]

    return Numbers(
        "The function and its slope:",
        [("x", *numbers(x)), ("f(x)", *numbers(y)), ("f'(x)", *numbers(slope))],
    )


def schedule(choice: type[Choice], words: Words) -> Numbers:
    """Tabulate the learning rate over a run."""
    run = RunSpec(model=small()).override(*words, "optimizer.lr=1")
    shares = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
    steps = 1000
    rates = [learning_rate(run.schedule, min(steps - 1, round(s * steps)), steps) for s in shares]
    return Numbers(
        "Share of the peak learning rate over a run of 1,000 steps:",
        [
            ("done", *(f"{s:.0%}" for s in shares)),
            ("rate", *(f"{rate:.3g}" for rate in rates)),
        ],
    )


def kv_heads() -> Numbers:
    """Count cache bytes and parameters of a model with 7B parameters."""
    plain = ModelSpec(dim=4096, num_layers=32, vocab_size=32000, context_length=4096)
    rows: list[Sequence[str]] = [
        (
            "heads",
            "key and value heads",
            "parameters",
            "cache per token, 16 bits",
            "of 4,096 tokens",
        )
    ]
    for heads in (32, 8, 4, 1):
        spec = plain.override("attention.num_heads=32", f"attention.num_kv_heads={heads}")
        model = build(spec, device="meta")
        number = sum(p.numel() for p in model.parameters())
        cached = [cache_bytes(model, length) for length in (1, 4096)]
        rows.append(("32", str(heads), count(number), *map(size, cached)))
    return Numbers("32 layers of width 4,096; MHA has 32, GQA fewer, MQA one:", rows)


AXES: dict[str, Callable[[type[Choice], Words], Numbers]] = {
    "position": position,
    "norm": norm,
    "mask": mask,
    "residual": residual,
    "feedforward": feedforward,
    "schedule": schedule,
}
"""Functions that return an example table of a choice, by axis."""
