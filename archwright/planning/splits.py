"""Splits that divide a model evenly, in search order."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from archwright.model.model import Decoder
from archwright.parts.linear import GroupedLinear, Linear
from archwright.planning.split import Split
from archwright.spec.errors import UserError

IN_SERVER = (2, 4, 8)
"""Tensor-parallel degrees within one server."""
SHORTEST = 8192
"""Minimum tokens per device with context parallelism."""


def refuse_split(split: Split, model: Decoder, length: int) -> None:
    """Check that a split divides a model and its sequences evenly.

    Raises:
        UserError: uneven splits, as returned by `problems`.
    """
    if lines := [*problems(split, model, length)]:
        raise UserError(*lines)


def problems(split: Split, model: Decoder, length: int) -> Iterator[str]:
    """Yield an error for each uneven part of a split."""
    layers = [*model.all_layers]
    if uneven := next(_uneven_blocks(split.tensor, model), ""):
        even = next(n for n in range(split.tensor - 1, 0, -1) if not any(_uneven_blocks(n, model)))
        yield (
            f"split: found tensor={split.tensor}; expected a number that goes into {uneven}, such as {even}"
        )
    if split.pipeline > 1:
        yield from pipeline_problems(split.pipeline, model)
    if length % split.context:
        yield _uneven("context", split.context, f"the {length:,} tokens of a sequence", length)
    if split.experts > 1:
        numbers = {len(m.weight) for m in model.modules() if isinstance(m, GroupedLinear)}
        common = math.gcd(*numbers) if numbers else 1
        if not numbers:
            yield f"split: found experts={split.experts}; expected 1, as none of the {len(layers)} layers has experts"
        elif common % split.experts:
            yield _uneven("experts", split.experts, f"the {common} experts of a layer", common)
        elif split.replicas % split.experts:
            what = f"the {split.replicas:,} devices with the same part of the model"
            yield _uneven("experts", split.experts, what, split.replicas)


def _uneven(axis: str, degree: int, what: str, number: int) -> str:
    near = next(n for n in range(min(degree, number), 0, -1) if number % n == 0)
    return f"split: found {axis}={degree}; expected a number that goes into {what}, such as {near}"


def _uneven_blocks(tensor: int, model: Decoder) -> Iterator[str]:
    """Yield heads or columns not divisible by `tensor`, once per distinct number."""
    seen: set[int] = set()
    for layer in dict.fromkeys(model.all_layers):
        for name, m in layer.named_modules():
            if not isinstance(m, Linear) or (blocks := blocks_of(m)) in seen:
                continue
            seen.add(blocks)
            # If there are fewer heads than devices, several devices hold the same head.
            if blocks % tensor and (m.num_blocks is None or tensor % blocks):
                what = "columns" if m.num_blocks is None else "heads"
                yield f"the {blocks:,} {what} of {name}"


def pipeline_problems(pipeline: int, model: Decoder) -> Iterator[str]:
    """Yield an error for each reason against this number of pipeline stages."""
    layers = [*model.all_layers]
    if model.spec.encoder_model is not None:
        yield f"split: found pipeline={pipeline}; expected 1, as stages of an encoder-decoder are not planned"
    elif len(set(layers)) < len(layers):
        yield f"split: found pipeline={pipeline}; expected 1, as layers share their weights"
    elif pipeline > len(layers):
        yield f"split: found pipeline={pipeline}; expected at most {len(layers)}, the number of layers"


def blocks_of(m: Linear) -> int:
    """Return the heads of a projection, or else its columns. Residual outputs are split by input columns."""
    return m.num_blocks or (m.d_in if m.is_residual_output else m.d_out)


def share(blocks: int, tensor: int) -> float:
    """Return the largest share of equal blocks on one device."""
    return -(-blocks // tensor) / blocks


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees that divide a model evenly."""

    tensor: tuple[int, ...]
    pipeline: tuple[int, ...]
    context: tuple[int, ...]
    experts: tuple[int, ...]

    @classmethod
    def of(cls, model: Decoder, length: int) -> "Degrees":
        """Return degrees that divide a model: tensor within a server, others powers of two."""
        numbers = {len(m.weight) for m in model.modules() if isinstance(m, GroupedLinear)}
        common = math.gcd(*numbers) if numbers else 1
        powers = [2**i for i in range(1, 12)]
        branches = (layer.branch(name) for layer in model.all_layers for name in layer.branches)
        stretches = [] if any(branch.along_text for branch in branches) else powers
        return cls(
            tuple(n for n in IN_SERVER if not any(_uneven_blocks(n, model))),
            tuple(n for n in powers if not any(pipeline_problems(n, model))),
            tuple(n for n in stretches if length % n == 0 and length // n >= SHORTEST),
            tuple(n for n in powers if common % n == 0),
        )


def splits(devices: int, degrees: Degrees) -> Iterator[Split]:
    """Yield splits, simple ones first: DDP; DDP with expert, then tensor parallelism; FSDP; FSDP with expert, then
    tensor, then pipeline parallelism; and last context parallelism."""
    yield Split(devices)
    if devices == 1:
        return
    experts = [n for n in degrees.experts if devices % n == 0]
    tensor = [n for n in degrees.tensor if devices % n == 0]
    yield from (Split(devices, experts=n) for n in experts if n in IN_SERVER)
    yield from (Split(devices, tensor=n) for n in tensor)
    yield Split(devices, "fsdp")
    yield from (Split(devices, "fsdp", experts=n) for n in experts)
    inside = [Split(devices, "fsdp", tensor=n) for n in tensor if devices > n]
    yield from (_spread(split, degrees) for split in inside)
    # Pipeline stages start when tensor parallelism fills a server.
    last = inside[-1] if inside else Split(devices, "fsdp")
    group = last.tensor
    staged = [replace(last, pipeline=n) for n in degrees.pipeline if devices % (group * n) == 0]
    yield from (_spread(split, degrees) for split in staged)
    for context in degrees.context:
        for split in (last, *staged):
            if split.replicas % context == 0:
                yield _spread(replace(split, context=context), degrees)


def _spread(split: Split, degrees: Degrees) -> Split:
    """Return a split with the largest expert-parallel degree that divides its replicas."""
    most = max((n for n in degrees.experts if split.replicas % n == 0), default=1)
    return replace(split, experts=most)
