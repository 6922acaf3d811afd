"""Data, tensor, pipeline, context and expert parallelism of a training run, and its micro-batches."""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from archwright.model.model import Decoder
from archwright.parts.linear import GroupedLinear, Linear
from archwright.spec.errors import UserError, nearest

Data = Literal["ddp", "zero1", "zero2", "fsdp"]
"""State sharded across data-parallel devices: nothing; moments; moments and gradients; moments, gradients and weights
(Rajbhandari et al., 2019, ZeRO, section 5)."""
DATA: tuple[Data, ...] = get_args(Data)
TITLES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "fsdp": "FSDP"}
AXES = ("tensor", "pipeline", "context", "experts")
NUMBERS = (*AXES, "shard", "chunks")
"""Items of a split with a number."""
MOST_CHUNKS = 2
"""Most runs of layers per device in the pipelines of `archwright train`."""
WHOLE_NORMS = "no-sequence"
ITEM = re.compile(r"([a-z]+)=([0-9]{1,7})")
IN_SERVER = (2, 4, 8)
"""Tensor-parallel degrees within one server."""
SHARDED = tuple(2**i for i in range(3, 12))
"""Shards of a copy of the state in the search of HSDP."""
SHORTEST = 8192
"""Minimum tokens per device with context parallelism."""
PER_STAGE = 4
"""Micro-batches per pipeline stage at which the bubble is negligible (Huang et al., 2019, section 2.3)."""


@dataclass(frozen=True)
class Split:
    """Distribution of a training run over devices.

    `devices` = `tensor` * `pipeline` * `replicas`, and `replicas` = `context` * `ranks` = `copies` * `shards`. Experts
    are sharded across replicas, so expert parallelism needs no additional devices. Consecutive devices have tensor,
    then context parallelism, the shards of one copy, its copies, and pipeline stages, as in `archwright train`.
    """

    devices: int
    data: Data = "ddp"
    tensor: int = 1
    """Devices that shard each layer's matrices by columns or rows (Shoeybi et al., 2019, section 3)."""
    pipeline: int = 1
    """Pipeline stages, each with some of the layers (Narayanan et al., 2021, section 2.2)."""
    context: int = 1
    """Devices that shard a sequence by tokens."""
    experts: int = 1
    """Devices that shard the experts of a layer."""
    sequence: bool = True
    """True if tensor-parallel devices also shard activations between the matrices by tokens (Korthikanti et al., 2022,
    section 4.2.2)."""
    shard: int | None = None
    """FSDP: groups of devices that shard one copy of the state (HSDP, Zhao et al., 2023, section 3.2.2); None: all."""
    chunks: int = 1
    """Runs of layers per pipeline stage, interleaved (Narayanan et al., 2021, section 2.2.2)."""

    @property
    def replicas(self) -> int:
        """Devices with the same part of the model before any sharding."""
        return self.devices // (self.tensor * self.pipeline)

    @property
    def ranks(self) -> int:
        """Groups of devices that read different sequences."""
        return self.replicas // self.context

    @property
    def shards(self) -> int:
        """Devices that shard one copy of the state."""
        return self.replicas if self.shard is None else self.shard * self.context

    @property
    def copies(self) -> int:
        """Sharded copies of the state, whose gradients are summed."""
        return self.replicas // self.shards

    def share_of(self, texts: float) -> float:
        """Return the sequences per group of devices and step, at least 1."""
        return max(1.0, texts / self.ranks)

    @property
    def axes(self) -> dict[str, int]:
        """Degrees above 1 of tensor, pipeline, context and expert parallelism."""
        return {name: n for name in AXES if (n := int(getattr(self, name))) > 1}

    @property
    def name(self) -> str:
        """Name for readers."""
        if self.devices == 1:
            return "one device"
        titles = [TITLES[self.data]] if self.replicas > 1 else []
        if self.copies > 1:
            titles = [f"HSDP, shard {self.shard}"]
        titles += [
            f"{name.removesuffix('s')}-parallel {number}" for name, number in self.axes.items()
        ]
        titles += [f"{self.chunks} chunks a stage"] * (self.chunks > 1)
        return ", ".join(titles) + (", not sequence-parallel" if not self.sequence else "")

    @property
    def scale(self) -> dict[str, object] | None:
        """Keys of `archwright train`, without "scale."; None: it has no such parallelism."""
        shards_experts = self.data == "fsdp" or self.experts == self.context == 1
        if self.data in ("zero1", "zero2") or not shards_experts or self.chunks > MOST_CHUNKS:
            return None
        shard = (self.shard or self.ranks) if self.data == "fsdp" else 1
        keys = {"replicate": self.ranks // shard, "shard": shard}
        keys |= {name.removesuffix("s"): number for name, number in self.axes.items()}
        found: dict[str, object] = {k: n for k, n in keys.items() if n > 1 or k == "shard"}
        found |= {"pipeline_schedule": "interleaved_1f1b"} if self.chunks > 1 else {}
        return found | ({} if self.sequence else {"sequence": False})


def parse_split(text: str, devices: int) -> Split:
    """Parse a split such as "tensor=8,pipeline=16,fsdp".

    Raises:
        UserError: unknown or repeated items, or degrees that do not divide the number of devices.
    """
    lines: list[str] = []
    values: dict[str, Any] = {}
    name: str
    value: object
    for item in text.split(","):
        match = ITEM.fullmatch(item)
        if match and match[1] in NUMBERS and int(match[2]) > 0:
            name, value = match[1], int(match[2])
        elif item in DATA:
            name, value = "data", item
        elif item == WHOLE_NORMS:
            name, value = "sequence", False
        else:
            options, head = (*NUMBERS, *DATA, WHOLE_NORMS), item.partition("=")[0]
            numbers = ", ".join(f"{axis}=N" for axis in NUMBERS)
            lines.append(
                f'split: found "{item}"; expected {numbers}, {", ".join(DATA)} or {WHOLE_NORMS}, with commas between '
                f"them.{'' if head in options else nearest(head, options)}"
            )
            continue
        if name in values:
            lines.append(f'split: found "{item}" behind another of its kind; expected one')
        values[name] = value
    if lines:
        raise UserError(*lines)
    if "shard" in values and values.setdefault("data", "fsdp") != "fsdp":
        raise UserError(
            f'split: found "{text}"; expected shard=N with fsdp, as {values["data"]} shards otherwise'
        )
    split = Split(devices, **values)
    group = split.tensor * split.pipeline * split.context * (split.shard or 1)
    if devices % group:
        raise UserError(
            f'split: found "{text}", whose groups have {group:,} devices; expected groups that go into '
            f"{devices:,}, or another number of devices, such as {-(-devices // group) * group:,}"
        )
    return split


def problems(split: Split, model: Decoder, length: int) -> Iterator[str]:
    """Yield an error for each uneven part of a split."""
    if uneven := next(_uneven_blocks(split.tensor, model), ""):
        even = next(n for n in range(split.tensor - 1, 0, -1) if not any(_uneven_blocks(n, model)))
        yield (
            f"split: found tensor={split.tensor}; expected a number that goes into {uneven}, such as {even}"
        )
    if split.pipeline > 1:
        yield from pipeline_problems(split.pipeline, model, split.chunks)
    elif split.chunks > 1:
        yield f"split: found chunks={split.chunks}; expected pipeline=N beside it, with N of 2 or more"
    if length % split.context:
        yield _uneven("context", split.context, f"the {length:,} tokens of a sequence", length)
    if split.experts > 1:
        common = _common_experts(model)
        if not common:
            layers = len([*model.all_layers])
            yield f"split: found experts={split.experts}; expected 1, as none of the {layers} layers has experts"
        elif common % split.experts:
            yield _uneven("experts", split.experts, f"the {common} experts of a layer", common)
        elif split.shards % split.experts:
            what = f"the {split.shards:,} devices with the same part of the model"
            yield _uneven("experts", split.experts, what, split.shards)


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


def pipeline_problems(pipeline: int, model: Decoder, chunks: int = 1) -> Iterator[str]:
    """Yield an error for each reason against this number of pipeline stages."""
    layers = [*model.all_layers]
    if model.spec.encoder_model is not None:
        yield f"split: found pipeline={pipeline}; expected 1, as stages of an encoder-decoder are not planned"
    elif len(set(layers)) < len(layers):
        yield f"split: found pipeline={pipeline}; expected 1, as layers share their weights"
    elif pipeline > len(layers):
        yield f"split: found pipeline={pipeline}; expected at most {len(layers)}, the number of layers"
    elif pipeline * chunks > len(layers) + (
        2 if chunks > MOST_CHUNKS else 0
    ):  # the ends may have no layer
        most = len(layers) // pipeline
        yield f"split: found chunks={chunks}; expected at most {most}, for {len(layers)} layers on {pipeline} stages"


def _common_experts(model: Decoder) -> int:
    """Return the greatest common divisor of the numbers of experts; 0 without experts."""
    return math.gcd(*(len(m.weight) for m in model.modules() if isinstance(m, GroupedLinear)))


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
    num_layers: int = 0

    @classmethod
    def of(cls, model: Decoder, length: int) -> "Degrees":
        """Return degrees that divide a model: tensor within a server, others powers of two."""
        common = _common_experts(model) or 1
        powers = [2**i for i in range(1, 12)]
        branches = (layer.branch(name) for layer in model.all_layers for name in layer.branches)
        stretches = [] if any(branch.along_text for branch in branches) else powers
        return cls(
            tuple(n for n in IN_SERVER if not any(_uneven_blocks(n, model))),
            tuple(n for n in powers if not any(pipeline_problems(n, model))),
            tuple(n for n in stretches if length % n == 0 and length // n >= SHORTEST),
            tuple(n for n in powers if common % n == 0),
            len([*model.all_layers]),
        )


def splits(devices: int, degrees: Degrees) -> Iterator[Split]:
    """Yield splits, simple ones first: DDP; DDP with tensor parallelism; FSDP; FSDP with expert parallelism; HSDP;
    FSDP with tensor, then pipeline parallelism; and last context parallelism."""
    yield Split(devices)
    if devices == 1:
        return
    experts = [n for n in degrees.experts if devices % n == 0]
    tensor = [n for n in degrees.tensor if devices % n == 0]
    yield from (Split(devices, tensor=n) for n in tensor)
    yield Split(devices, "fsdp")
    yield from (Split(devices, "fsdp", experts=n) for n in experts)
    copies = [n for n in SHARDED if devices % n == 0 and devices > n]
    for split in (Split(devices, "fsdp", shard=n) for n in copies):
        yield split
        if (spread := _spread(split, degrees)) != split:
            yield spread
    inside = [Split(devices, "fsdp", tensor=n) for n in tensor if devices > n]
    yield from (_spread(split, degrees) for split in inside)
    # Pipeline stages start when tensor parallelism fills a server.
    last = inside[-1] if inside else Split(devices, "fsdp")
    group = last.tensor
    staged = [
        replace(last, pipeline=n, chunks=chunks)
        for chunks in range(1, MOST_CHUNKS + 1)
        for n in degrees.pipeline
        if devices % (group * n) == 0 and n * chunks <= degrees.num_layers
    ]
    yield from (_spread(split, degrees) for split in staged)
    for context in degrees.context:
        for split in (last, *staged):
            if split.replicas % context == 0:
                yield _spread(replace(split, context=context), degrees)


def _spread(split: Split, degrees: Degrees) -> Split:
    """Return a split with the largest expert-parallel degree that divides its replicas."""
    most = max((n for n in degrees.experts if split.shards % n == 0), default=1)
    return replace(split, experts=most)


@dataclass(frozen=True)
class Batch:
    """Sequences per group of devices and step, with gradients accumulated over micro-batches."""

    texts: float
    micro: int = 1
    """Sequences per micro-batch; the last micro-batch may have fewer."""

    @property
    def number(self) -> int:
        """Number of micro-batches."""
        return math.ceil(self.texts / self.micro)


def largest_micro(share: float, pipeline: int, fits: Callable[[int], bool]) -> int:
    """Return the largest power of two that fits, at most `share`, or 1.

    A pipeline gets at least `PER_STAGE` micro-batches per stage if `share` is large enough."""
    most = share if pipeline == 1 else share / (PER_STAGE * pipeline)
    powers = range(1, math.floor(math.log2(most)) + 1)
    return 1 << bisect_left(powers, True, key=lambda power: not fits(2**power))
