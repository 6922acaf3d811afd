"""FLOPs and bytes of every operator of a model in training, prefill and decoding; their quotient,
the arithmetic intensity, says by the roofline what bounds them (Williams et al., 2009)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from archwright.model.language_model import LanguageModel
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer, Mixer
from archwright.planning.cost import (
    BACKWARD,
    flops_of_next,
    global_tokens,
    next_vectors_read,
    stream_flops,
    streams_of,
    vectors_read,
)
from archwright.planning.counts import part_of
from archwright.planning.elementwise import PER_LOGIT, num_logits, of_layers, update_costs
from archwright.spec.hardware import Hardware
from archwright.spec.run_spec import RunSpec

Phase = Literal["training", "prefill", "decode"]
Evidence = Literal["counted", "estimated"]
PHASES: tuple[Phase, ...] = ("training", "prefill", "decode")


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
    keeps_scores: bool = False,
    run: RunSpec | None = None,
    updates: float = 1.0,
) -> list[Operator]:
    """Return the operators of a pass over `texts` texts of `length` tokens, or of one more token for each of them.

    A product reads both factors and writes its result; of experts those are read that the tokens meet together.
    Attention reads queries, keys and values, and writes what it mixes; in decoding it reads the cache. Training does
    all of it forward and twice backward. Prefill asks the head for the last token alone. Of two stacks, prefill reads a
    source of `length` tokens and the first token of a text, and decoding goes on with a text as long as the source.
    Norms, sums, activations, gates and rotations read and write number by number. In training the loss reads logits
    twice and writes their gradients, and the optimizer moves all weights.

    Args:
        target_length: tokens that the decoder of two stacks reads beside each source in training, by default as many.
        itemsize: bytes of a number.
        keeps_scores: whether attention writes its scores and reads them again, as without a fused kernel.
        run: whose optimizer moves the weights; None: the default one.
        updates: updates of weights for a pass of training: a part of a batch has a part of one.
    """
    streams = streams_of(model, cached=phase != "training")
    if model.spec.encoder_model is None:
        target_length = length
    elif phase == "prefill":
        target_length = 1
    elif phase == "decode" or target_length is None:
        target_length = length
    passes = 1 + BACKWARD if phase == "training" else 1
    sizes = (texts, length, target_length)
    counted = (
        *_products(model, phase, *sizes, streams),
        *_between(model, phase, *sizes, keeps_scores, streams),
    )
    estimated = of_layers(model, *sizes, streams, decodes=phase == "decode")
    both: tuple[tuple[Evidence, Iterable[tuple[str, float, float]]], ...] = (
        ("counted", counted),
        ("estimated", estimated),
    )
    found = [
        Operator(name, passes * flops, passes * itemsize * numbers, flops, evidence)
        for evidence, parts in both
        for name, (flops, numbers) in _added_up(parts).items()
        if numbers
    ]
    if phase == "training":
        logits = num_logits(model, *sizes, streams)
        forward, backward = (logits * flops for flops in PER_LOGIT)
        moved = 3 * logits * itemsize
        found.append(Operator("loss", forward + backward, moved, forward, "estimated"))
        flops, moved = (updates * cost for cost in update_costs(model, run))
        found.append(Operator("optimizer", flops, moved, 0.0, "estimated"))
    return found


def _added_up(parts: Iterable[tuple[str, float, float]]) -> dict[str, tuple[float, float]]:
    """Return sums of FLOPs and numbers by name."""
    sums: dict[str, tuple[float, float]] = {}
    for name, flops, numbers in parts:
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + flops, before[1] + numbers)
    return sums


def _products(
    model: LanguageModel, phase: Phase, texts: int, length: int, target_length: int, streams: int
) -> Iterator[tuple[str, float, float]]:
    """Yield each map's part, FLOPs, and numbers that it moves."""
    for name, m, number in _vectors(model, phase, texts, length, target_length, streams):
        weight, share = m.weight.numel(), m.active_fraction
        read = weight * (1 - (1 - share) ** number)
        rows = number * share * weight / (m.d_in * m.d_out)
        part = part_of(".".join(word for word in name.split(".") if not word.isdigit()))
        yield part, 2.0 * number * share * weight, read + rows * (m.d_in + m.d_out)


def _vectors(
    model: LanguageModel, phase: Phase, texts: int, length: int, target_length: int, streams: int
) -> Iterator[tuple[str, Linear, float]]:
    """Yield each map and how many vectors it reads in a pass."""
    if phase == "decode":
        for name, m, each in next_vectors_read(model, streams):
            yield name, m, float(texts * each)
        return
    head = {*model.head.modules()} if phase == "prefill" else set()
    for name, m, number in vectors_read(model, length, target_length, streams):
        yield name, m, texts * (1.0 if m in head else length * number)


def _between(
    model: LanguageModel,
    phase: Phase,
    texts: int,
    length: int,
    target_length: int,
    keeps_scores: bool,
    streams: int,
) -> Iterator[tuple[str, float, float]]:
    decoder, more = {*model.stack}, global_tokens(model)
    beside = "encoder: " if model.spec.generator.is_none else "generator: "
    for layer in model.all_layers:
        in_decoder = layer in decoder
        if phase == "decode" and not in_decoder:
            continue  # the source was read before
        text, vectors = (target_length, streams) if in_decoder else (length, 0)
        text += more[layer]
        for name, mixer in layer.mixers().items():
            decodes = phase == "decode"
            if decodes:
                flops = texts * flops_of_next(mixer, text, length, vectors)
            else:
                flops = texts * _of_text(mixer, text, length, vectors)
            numbers = texts * _numbers(mixer, phase, text, length, vectors)
            if keeps_scores and isinstance(mixer, AttentionMixer):
                per_pair = mixer.flops_per_cached_pair if decodes else mixer.flops_per_pair
                # Written, read by the softmax, written, and read to mix.
                numbers += 4 * mixer.num_heads * flops / per_pair
            part = f"{'' if in_decoder else beside}{name.replace('_', '-')} between tokens"
            yield part, flops, numbers


def _of_text(mixer: Mixer, text: int, source: int, streams: int) -> float:
    """Return the FLOPs of a mixer between its maps for a text and its predicting streams."""
    if mixer.source_maps:
        return (1 + streams) * text * mixer.flops_per_token(source)
    return text * mixer.flops_per_token(text) + stream_flops(mixer, text, streams)


def _numbers(mixer: Mixer, phase: Phase, text: int, source: int, streams: int) -> float:
    """Return the numbers that a mixer reads and writes between its maps, of one text."""
    new = 1 if phase == "decode" else text
    if mixer.source_maps:
        # Keys and values of the source; queries, and what is mixed: as wide as a product for each pair takes FLOPs.
        return mixer.state_bytes(source, 1) + (1 + streams) * new * mixer.flops_per_token(1) / 2
    decodes = phase == "decode"
    moved = mixer.values_moved_by_next_token(text) if decodes else mixer.values_moved(text)
    if isinstance(mixer, AttentionMixer):
        # Vectors of streams have queries, results, keys and values of their own.
        moved += streams * new * (mixer.flops_per_pair / 2 + mixer.keys_per_token)
    return moved


def ridge(hardware: Hardware, precision: str) -> float:
    """Return the intensity from which on the peak bounds, and not the bandwidth."""
    return hardware.peak(precision) / hardware.memory_bandwidth
