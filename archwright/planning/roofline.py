"""FLOPs and bytes of every operator of a model in training, prefill and decoding; their quotient,
the arithmetic intensity, says by the roofline what bounds them (Williams et al., 2009)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from archwright.model.language_model import LanguageModel
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer, Mixer
from archwright.planning.cost import (
    BACKWARD,
    global_tokens,
    global_tokens_read,
    stream_flops,
    stream_vectors,
    streams_of,
)
from archwright.planning.counts import part_of
from archwright.spec.hardware import Hardware

Phase = Literal["training", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("training", "prefill", "decode")
PER_NORM = 7
"""FLOPs of a norm and the sum behind it, for each number of the stream."""
MOVED_BY_NORM = 5
"""Numbers that they read and write for each: a norm one and one, a sum two and one."""


@dataclass(frozen=True)
class Operator:
    """What a part of a model computes and moves in one pass."""

    name: str
    flops: float
    num_bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.num_bytes

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
    itemsize: float = 2.0,
    keeps_scores: bool = False,
) -> list[Operator]:
    """Return the operators of a pass over `texts` texts of `length` tokens, or of one more token for each of them.

    A product reads both factors and writes its result; of experts those are read that the tokens meet together.
    Attention reads queries, keys and values, and writes what it mixes; in decoding it reads the cache. Training does
    all of it forward and twice backward. Of two stacks both read `length` tokens.

    Args:
        itemsize: bytes of a number.
        keeps_scores: whether attention writes its scores and reads them again, as without a fused kernel.
    """
    tokens = texts * (1 if phase == "decode" else length)
    streams = streams_of(model, cached=phase != "training")
    passes = 1 + BACKWARD if phase == "training" else 1
    found: dict[str, list[float]] = {}
    for name, flops, numbers in (
        *_products(model, tokens, texts if phase != "decode" else 0, streams),
        *_between(model, phase, texts, length, keeps_scores, streams),
        *_norms(model, tokens, streams),
    ):
        sums = found.setdefault(name, [0.0, 0.0])
        sums[0] += passes * flops
        sums[1] += passes * itemsize * numbers
    return [Operator(name, *sums) for name, sums in found.items() if sums[1]]


def _products(
    model: LanguageModel, tokens: int, texts: int, streams: int
) -> Iterator[tuple[str, float, float]]:
    """Yield each map's part, FLOPs, and numbers that it moves, for so many tokens and those before `texts`."""
    more, vectors = global_tokens_read(model), stream_vectors(model, streams)
    for name, m in model.named_modules():
        if isinstance(m, Linear):
            weight, share = m.weight.numel(), m.active_fraction
            number = tokens * vectors.get(m, 1) + texts * more.get(m, 0)
            read = weight * (1 - (1 - share) ** number)
            rows = number * share * weight / (m.d_in * m.d_out)
            part = part_of(".".join(word for word in name.split(".") if not word.isdigit()))
            yield part, 2.0 * number * share * weight, read + rows * (m.d_in + m.d_out)


def _between(
    model: LanguageModel, phase: Phase, texts: int, length: int, keeps_scores: bool, streams: int
) -> Iterator[tuple[str, float, float]]:
    decoder, more = {*model.stack}, global_tokens(model)
    for layer in model.all_layers:
        if phase == "decode" and layer not in decoder:
            continue  # the source was read before
        of_stack = "" if layer in decoder else "encoder: "
        for name, mixer in layer.mixers().items():
            text, vectors = length + more[layer], streams if layer in decoder else 0
            flops = texts * _of_text(mixer, text, length, vectors)
            if phase == "decode" and length > 1:
                flops -= texts * _of_text(mixer, length - 1, length - 1, vectors)
            numbers = _numbers(mixer, phase, texts, text, vectors)
            if keeps_scores and isinstance(mixer, AttentionMixer):
                # Written, read by the softmax, written, and read to mix.
                numbers += 4 * mixer.num_heads * flops / mixer.flops_per_pair
            yield f"{of_stack}{name.replace('_', '-')} between tokens", flops, numbers


def _of_text(mixer: Mixer, text: int, source: int, streams: int) -> float:
    """Return the FLOPs of a mixer between its maps for a text, or for one beside a source, and its predicting
    streams."""
    if mixer.source_maps:
        return (1 + streams) * text * mixer.flops_per_token(source)
    return text * mixer.flops_per_token(text) + stream_flops(mixer, text, streams)


def _numbers(mixer: Mixer, phase: Phase, texts: int, length: int, streams: int) -> float:
    """Return the numbers that a mixer reads and writes between its maps."""
    if not isinstance(mixer, AttentionMixer):
        return texts * float(mixer.state_bytes(length, 1))
    own = (
        mixer.flops_per_pair / 2
    )  # queries, and what is mixed: heads times the widths of a key and a value
    beside = streams * (own + mixer.kept_per_token)  # of streams, keys and values as well
    if phase == "decode":
        return texts * (own + mixer.state_bytes(length, 1) + beside)
    return texts * length * (own + mixer.kept_per_token + beside)


def _norms(model: LanguageModel, tokens: int, streams: int) -> Iterator[tuple[str, float, float]]:
    decoder = {*model.stack}
    for layer in model.all_layers:
        vectors = 1 + streams if layer in decoder else 1
        numbers = float(tokens * vectors * model.spec.dim * len(layer.branches))
        yield "norms and sums", PER_NORM * numbers, MOVED_BY_NORM * numbers


def ridge(hardware: Hardware, precision: str) -> float:
    """Return the intensity from which on the peak bounds, and not the bandwidth."""
    return hardware.peak(precision) / hardware.memory_bandwidth
