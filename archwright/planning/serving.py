"""Roofline bounds of prefill and decode speed: bytes over bandwidth and FLOPs over peak."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from archwright.model.model import Decoder
from archwright.parts.linear import Linear
from archwright.planning.cost import next_token_flops, prefill_flops
from archwright.planning.memory import cache_bytes
from archwright.planning.split import share
from archwright.planning.training_memory import USABLE
from archwright.spec.hardware import Hardware

BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Bytes of a weight by precision."""
SERVER = 8
"""Devices of a server."""
LENGTHS, SHORTEST = 10, 128
"""Number of contexts in `by_context`, each half of the next, and the shortest."""
LARGEST = 2**20
"""Upper bound of the batch size."""


@dataclass(frozen=True)
class Serving:
    """Upper bounds of speed; links, kernels and scheduling reduce it in practice."""

    devices: int
    """Devices per copy of the model: a server, or more if weights and one cache do not fit."""
    weight_bytes: float
    largest_batch: int
    """Largest number of caches that fits next to the weights; replicated caches count on every device."""
    prefill_tokens_per_second: float
    """Prefill speed of one sequence of the context."""
    decode_tokens_per_second: float
    """Decode speed of one sequence after a context."""
    decode_tokens_per_second_at_largest_batch: float
    """Decode speed of the largest batch, summed over its sequences."""
    by_batch: tuple[tuple[int, float], ...] = ()
    """Batch size and total decode tokens per second."""
    by_context: tuple[tuple[int, float, float], ...] = ()
    """Context, and prefill and decode tokens per second of one sequence."""


def serving(
    model: Decoder, hardware: Hardware, length: int, precision: str, most_devices: int
) -> Serving | None:
    """Return prefill and decode speeds at `length` tokens.

    Return None if the model has no cache or does not fit on `most_devices`. With an encoder, source and target have
    `length` tokens. The cache has 16 bits, or 32 if the weights do."""
    if not model.can_cache:
        return None
    size = BYTES[precision]
    weights, itemsize = size * model.num_parameters(), max(2, int(size))
    devices, memory = min(SERVER, most_devices), USABLE * hardware.memory_bytes
    while devices * memory < weights + cache_on_devices(model, length, itemsize, devices):
        if devices == most_devices:
            return None
        devices = min(2 * devices, most_devices)
    cached = cache_on_devices(model, length, itemsize, devices)
    largest = LARGEST if not cached else min(LARGEST, int((devices * memory - weights) / cached))
    peak = devices * hardware.peak(precision)
    bandwidth = devices * hardware.memory_bandwidth

    of_prefill, of_step = weights_by_share(model), weights_by_share(model, decodes=True)

    def prefill(tokens: int) -> float:
        """Return the seconds to prefill a sequence, or to read a source and the first target token."""
        computed = prefill_flops(model, tokens) / peak
        return max(computed, size * weights_read(of_prefill, tokens) / bandwidth)

    @cache
    def of_text(tokens: int) -> tuple[float, float]:
        """Return the cache bytes of a sequence and the FLOPs of its next token."""
        cached = cache_on_devices(model, tokens, itemsize, devices)
        return cached, next_token_flops(model, tokens)

    def step(batch: int, tokens: int = length) -> float:
        """Return the seconds to decode one token per sequence of a batch."""
        cached, computed = of_text(tokens)
        read = size * weights_read(of_step, batch) + batch * cached
        return max(read / bandwidth, batch * computed / peak)

    batches = [2**i for i in range(LARGEST.bit_length()) if 2**i < largest]
    contexts = [length // 2**i for i in range(LENGTHS) if length >> i >= SHORTEST] or [length]
    return Serving(
        devices,
        weights,
        largest,
        length / prefill(length),
        1 / step(1),
        largest / step(largest),
        tuple((n, n / step(n)) for n in (*batches, largest)),
        tuple((n, n / prefill(n), 1 / step(1, n)) for n in reversed(contexts)),
    )


def cache_on_devices(model: Decoder, length: int, itemsize: int, devices: int) -> float:
    """Return the cache bytes of a sequence on all devices. Replicated heads and latents count on each."""
    tensor = min(devices, SERVER)
    return sum(
        mixer.state_bytes(length, itemsize)
        * (1.0 if mixer.kept_blocks is None else tensor * share(mixer.kept_blocks, tensor))
        for mixer in model.mixers()
        if mixer.reads_state_of is None
    )


def decode_seconds(model: Decoder, hardware: Hardware, length: int, precision: str) -> float:
    """Return the minimum seconds to decode one token after `length` tokens on one device."""
    read = BYTES[precision] * weights_read(weights_by_share(model, decodes=True), 1)
    read += cache_bytes(model, length, itemsize=max(2, int(BYTES[precision])))
    computed = next_token_flops(model, length) / hardware.peak(precision)
    return max(read / hardware.memory_bandwidth, computed)


def weights_read(by_share: Mapping[float, int], tokens: int) -> float:
    """Return the expected weights read by a batch, sum number (1 - (1 - share)^tokens)."""
    return sum(number * (1 - (1 - share) ** tokens) for share, number in by_share.items())


def weights_by_share(model: Decoder, *, decodes: bool = False) -> dict[float, int]:
    """Return the number of projection weights by share used per token, without embeddings.

    Args:
        decodes: omit weights that read the source, as in decoding with a cache.
    """
    unread = {*_source_maps(model)} if decodes else set()
    weights: dict[float, int] = {}
    for m in model.modules():
        if isinstance(m, Linear) and m not in unread:
            weights[m.active_fraction] = weights.get(m.active_fraction, 0) + m.weight.numel()
    return weights


def _source_maps(model: Decoder) -> Iterator[Linear]:
    """Yield the maps of the source: an encoder's, and those of cross-attention's keys and values."""
    for stack in model.stacks[:-1]:
        yield from (module for module in stack.modules() if isinstance(module, Linear))
    for layer in model.stack:
        for name in layer.branches:
            yield from layer.branch(name).source_maps
