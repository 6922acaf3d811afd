"""Roofline of a model's operators in training, prefill and decoding: FLOPs, bytes and their
quotient, the arithmetic intensity (Williams et al., 2009)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from archwright.model.model import Decoder
from archwright.optim.groups import build_optimizers
from archwright.optim.muon import Muon
from archwright.planning.cost import part_of
from archwright.planning.counter import OTHER, Key
from archwright.planning.stages import PER_WEIGHT, optimizer_bytes
from archwright.planning.trace import Precision, trace
from archwright.spec.hardware import Hardware
from archwright.spec.run_spec import RunSpec

Phase = Literal["training", "prefill", "decode"]
Evidence = Literal["counted", "estimated"]
PHASES: tuple[Phase, ...] = ("training", "prefill", "decode")
SUMS = "norms and sums"
"""Operator of norms, and of sums in the residual stream, the embedding and gradients."""
ELEMENTWISE = " elementwise"
"""Name suffix of elementwise operators: activations, gates, rotations, casts."""
ESTIMATED = (SUMS, ELEMENTWISE)
"""Name suffixes of operators with estimated FLOPs."""
PER_LOGIT = (4, 3)
"""FLOPs of the loss per logit, forward and backward: the exponential, and the difference from the target."""
PER_WEIGHT_MOVED = 12
"""FLOPs of AdamW's step per weight: two moments, their quotient, and the decay."""


@dataclass(frozen=True)
class Operator:
    """FLOPs and bytes of a part of a model in one pass."""

    name: str
    flops: float
    num_bytes: float
    forward: float
    """FLOPs of the forward pass."""
    evidence: Evidence = "counted"
    """Origin of the FLOPs: counted from projections and masks, or estimated per element read or written."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes

    def record(self) -> dict[str, float | str]:
        """Return the values of a plan's report, ready for JSON."""
        return {
            "flops": self.flops,
            "bytes": self.num_bytes,
            "intensity": self.intensity,
            "evidence": self.evidence,
        }

    def attainable(self, hardware: Hardware, precision: str) -> float:
        """Return the attainable FLOP/s: min(peak, intensity * bandwidth)."""
        return min(hardware.peak(precision), self.intensity * hardware.memory_bandwidth)

    def seconds(self, hardware: Hardware, precision: str) -> float:
        """Return the minimum time on one device."""
        return max(
            self.flops / hardware.peak(precision), self.num_bytes / hardware.memory_bandwidth
        )


def operators(
    model: Decoder,
    phase: Phase,
    *,
    texts: int,
    length: int,
    target_length: int | None = None,
    itemsize: float = 2.0,
    kernel: str = "flex",
    run: RunSpec | None = None,
    updates: float = 1.0,
) -> list[Operator]:
    """Return the operators of a pass over `texts` texts of `length` tokens.

    Every operation reads and writes each of its tensors once, as eager kernels do; a fusing compiler moves fewer bytes.
    Training runs forward and backward under autocast; the loss reads logits twice and writes their gradients, and the
    optimizer moves all weights. Prefill computes logits of only the last token. Decoding reads one token per text. With
    an encoder and a decoder, prefill reads a source of `length` tokens and the first token of a text, and decoding
    continues a text of the length of the source.

    Args:
        target_length: decoder tokens per source in training with two stacks. Default: `length`.
        itemsize: bytes per element; traces in 16 or 32 bits are scaled to it.
        kernel: kernel of attention; `eager` writes its scores and reads them again.
        run: run with the optimizer of the weights; None: the default run.
        updates: updates of weights per training pass; a microbatch has a fraction of one.
    """
    narrow = itemsize <= 2
    in_16_bits: Precision = "autocast" if phase == "training" else "bf16"
    precision: Precision = in_16_bits if narrow else "fp32"
    found = trace(
        model,
        phase,
        length=length,
        target_length=target_length if phase == "training" else None,
        texts=texts,
        precision=precision,
        kernel=kernel,
    )
    scale = itemsize / (2 if narrow else 4)
    mixers = {f"layers.{name}" for layer in model.all_layers for name in layer.mixers()}
    titles = {key: _title(key, mixers) for key in found.flops}
    computes = {titles[key] for key, flops in found.flops.items() if flops}
    sums: dict[str, tuple[float, float, float]] = {}
    for key, flops in found.flops.items():
        # Copies and casts of a part without other FLOPs count under norms and sums.
        name = titles[key] if titles[key] in computes else SUMS
        before = sums.get(name, (0.0, 0.0, 0.0))
        forward = flops if key.phase == "forward" else 0.0
        more = (flops, scale * found.num_bytes[key], forward)
        sums[name] = (before[0] + more[0], before[1] + more[1], before[2] + more[2])
    counted = [
        Operator(name, *numbers, "estimated" if name.endswith(ESTIMATED) else "counted")
        for name, numbers in sums.items()
        if numbers[1]
    ]
    parts = sorted(counted, key=lambda o: (o.evidence == "estimated", o.name.endswith("tokens")))
    if phase == "training":
        parts += _loss_and_optimizer(model, texts, length, target_length, itemsize, run, updates)
    return parts


def _title(key: Key, mixers: Collection[str]) -> str:
    """Return an operator's title: products, mixing between tokens, or elementwise."""
    stack, words = "", key.part
    for name in ("encoder", "generator"):
        if words.startswith(f"{name}."):
            stack, words = f"{name}: ", words.removeprefix(f"{name}.")
    part = part_of(words)
    if key.sort == "leaf" or (key.sort == "product" and words in mixers):
        return f"{stack}{part} between tokens"
    if key.sort == "product":
        return f"{stack}{part}"
    if words in ("", "layers", OTHER) or "norm" in part:
        return SUMS
    return f"{stack}{part}{ELEMENTWISE}"


def _loss_and_optimizer(
    model: Decoder,
    texts: int,
    length: int,
    target_length: int | None,
    itemsize: float,
    run: RunSpec | None,
    updates: float,
) -> Iterator[Operator]:
    """Yield the operators of the loss and of the optimizer's step."""
    spec = model.spec
    read = length if spec.encoder_model is None else target_length or length
    logits = texts * read * int(spec.vocab_size)
    forward, backward = (float(logits * flops) for flops in PER_LOGIT)
    yield Operator("loss", forward + backward, 3.0 * logits * itemsize, forward, "estimated")
    flops, moved = (updates * cost for cost in update_costs(model, run))
    yield Operator("optimizer", flops, moved, 0.0, "estimated")


def update_costs(model: Decoder, run: RunSpec | None) -> tuple[float, float]:
    """Return the FLOPs and bytes of an optimizer's step in 32 bits.

    The step reads weights, gradients and state, and writes weights and state. FLOPs include the products of Muon's
    orthogonalisation; bytes exclude its intermediate matrices.

    Args:
        run: run with the optimizer; None: the default run.
    """
    run = RunSpec(model=model.spec) if run is None else run
    number = model.num_parameters()
    flops = float(PER_WEIGHT_MOVED * number)
    for optimizer in build_optimizers(model, run.optimizer).values():
        if isinstance(optimizer, Muon):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    # A step is (b G + c G^2) X, G = X X^T, of matrices [m, n]: 2 m^2 n + m^3 multiplications.
                    m, n = sorted(p.shape[-2:])
                    matrices = p.numel() / (m * n)
                    flops += group["steps"] * matrices * 2.0 * (2 * m * m * n + m**3)
    return flops, 3 * PER_WEIGHT * number + 2 * optimizer_bytes(run, model)


def ridge(hardware: Hardware, precision: str) -> float:
    """Return the ridge point: the intensity of peak over bandwidth."""
    return hardware.peak(precision) / hardware.memory_bandwidth
