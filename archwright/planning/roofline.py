"""FLOPs and bytes of every operator of a model in training, prefill and decoding; their quotient,
the arithmetic intensity, says by the roofline what bounds them (Williams et al., 2009)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from archwright.model.language_model import LanguageModel
from archwright.optim.groups import build_optimizers
from archwright.optim.muon import Muon
from archwright.planning.counter import OTHER, Key
from archwright.planning.counts import part_of
from archwright.planning.stages import PER_WEIGHT, optimizer_bytes
from archwright.planning.trace import Precision, trace
from archwright.spec.hardware import Hardware
from archwright.spec.run_spec import RunSpec

Phase = Literal["training", "prefill", "decode"]
Evidence = Literal["counted", "estimated"]
PHASES: tuple[Phase, ...] = ("training", "prefill", "decode")
SUMS = "norms and sums"
"""Operator of norms, and of what the stream, the embedding and gradients add up."""
ELEMENTWISE = " elementwise"
"""End of the names of operators that compute number by number: activations, gates, rotations, casts."""
PER_LOGIT = (4, 3)
"""FLOPs of the loss for each logit, forward and backward: its exponential, and the difference from its target."""
PER_WEIGHT_MOVED = 12
"""FLOPs of AdamW's step for each weight: two means, their quotient, and the decay."""


@dataclass(frozen=True)
class Operator:
    """What a part of a model computes and moves in one pass."""

    name: str
    flops: float
    num_bytes: float
    forward: float
    """FLOPs of the forward pass."""
    evidence: Evidence = "counted"
    """How FLOPs were found: counted from maps and masks, or estimated for each number that is read or written."""

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.num_bytes

    def record(self) -> dict[str, float | str]:
        """Return the values that a plan gives, ready for JSON."""
        return {
            "flops": self.flops,
            "bytes": self.num_bytes,
            "intensity": self.intensity,
            "evidence": self.evidence,
        }

    def attainable(self, hardware: Hardware, precision: str) -> float:
        """Return the FLOP/s at best: the peak, or the intensity times the bandwidth."""
        return min(hardware.peak(precision), self.intensity * hardware.memory_bandwidth)

    def seconds(self, hardware: Hardware, precision: str) -> float:
        """Return the time on one device at best."""
        return max(
            self.flops / hardware.peak(precision), self.num_bytes / hardware.memory_bandwidth
        )


def operators(
    model: LanguageModel,
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
    """Return the operators of a pass over `texts` texts of `length` tokens, or of one more token for each of them.

    Every operation reads and writes each of its tensors once, as eager kernels do; a compiler that fuses moves fewer
    bytes. Training runs under autocast, forward and backward. Prefill asks the head for the last token alone. Of two
    stacks, prefill reads a source of `length` tokens and the first token of a text, and decoding continues a text as
    long as the source. In training the loss reads logits twice and writes their gradients, and the optimizer moves all
    weights.

    Args:
        target_length: tokens that the decoder of two stacks reads next to each source in training, by default as many.
        itemsize: bytes of a number; those of a trace in 16 or 32 bits are scaled to it.
        kernel: kernel of attention; `eager` writes its scores and reads them again.
        run: run with the optimizer that moves the weights; None: the default one.
        updates: updates of weights for a pass of training: a part of a batch has a part of one.
    """
    narrow = itemsize <= 2
    if phase == "training":
        precision: Precision = "autocast" if narrow else "fp32"
    else:
        precision = "bf16" if narrow else "fp32"
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
        # Copies and casts of a part that computes nothing else have no intensity of their own.
        name = titles[key] if titles[key] in computes else SUMS
        before = sums.get(name, (0.0, 0.0, 0.0))
        forward = flops if key.phase == "forward" else 0.0
        more = (flops, scale * found.num_bytes[key], forward)
        sums[name] = (before[0] + more[0], before[1] + more[1], before[2] + more[2])
    counted = [
        Operator(name, *numbers, evidence="estimated" if _is_elementwise(name) else "counted")
        for name, numbers in sums.items()
        if numbers[1]
    ]
    parts = sorted(counted, key=lambda o: (o.evidence == "estimated", o.name.endswith("tokens")))
    if phase == "training":
        parts += _loss_and_optimizer(model, texts, length, target_length, itemsize, run, updates)
    return parts


def _is_elementwise(name: str) -> bool:
    return name == SUMS or name.endswith(ELEMENTWISE)


def _title(key: Key, mixers: Collection[str]) -> str:
    """Return the operator that readers see: products of a part, what it computes between tokens, or by element."""
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
    model: LanguageModel,
    texts: int,
    length: int,
    target_length: int | None,
    itemsize: float,
    run: RunSpec | None,
    updates: float,
) -> Iterator[Operator]:
    """Yield the loss, which reads logits twice and writes gradients, and the optimizer's step."""
    spec = model.spec
    read = length if spec.encoder_model is None else target_length or length
    logits = texts * read * max(1, spec.predicting_streams) * int(spec.vocab_size)
    forward, backward = (float(logits * flops) for flops in PER_LOGIT)
    yield Operator("loss", forward + backward, 3.0 * logits * itemsize, forward, "estimated")
    flops, moved = (updates * cost for cost in update_costs(model, run))
    yield Operator("optimizer", flops, moved, 0.0, "estimated")


def update_costs(model: LanguageModel, run: RunSpec | None) -> tuple[float, float]:
    """Return the FLOPs and bytes of an optimizer's step in 32 bits.

    Weights, gradients and its state are read, weights and the state are written. Products of Muon's orthogonalisation
    are counted, as if each matrix stayed where it is computed.

    Args:
        run: run with the optimizer; None: the default one.
    """
    run = RunSpec(model=model.spec) if run is None else run
    number = model.num_parameters()
    flops = float(PER_WEIGHT_MOVED * number)
    for optimizer in build_optimizers(model, run.optimizer).values():
        if isinstance(optimizer, Muon):
            for group in optimizer.param_groups:
                flops += sum(group["steps"] * _step_of_muon(p) for p in group["params"])
    return flops, 3 * PER_WEIGHT * number + 2 * optimizer_bytes(run, model)


def _step_of_muon(p: nn.Parameter) -> float:
    """Return the FLOPs of (b G + c G^2) X, G = X X^T: 2 m^2 n + m^3 multiplications."""
    m, n = sorted(p.shape[-2:])
    matrices = p.numel() / (m * n)
    return matrices * 2.0 * (2 * m * m * n + m**3)


def ridge(hardware: Hardware, precision: str) -> float:
    """Return the intensity from which on the peak bounds, and not the bandwidth."""
    return hardware.peak(precision) / hardware.memory_bandwidth
