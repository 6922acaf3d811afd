"""How fast a model prefills and decodes at best: the roofline of bytes over bandwidth and FLOPs over peak."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from archwright.model.language_model import LanguageModel
from archwright.parts.linear import Linear
from archwright.planning.cost import next_token_flops, prefill_flops
from archwright.planning.memory import cache_bytes
from archwright.planning.splits import share
from archwright.planning.training_memory import USABLE
from archwright.spec.hardware import Hardware

BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}
"""Bytes of a weight by precision."""
SERVER = 8
"""Devices of a server."""
LENGTHS, SHORTEST = 10, 128
"""Contexts that are looked at, each half as long as the next, and the shortest."""
LARGEST = 2**20
"""Texts at once beyond which nobody serves."""


@dataclass(frozen=True)
class Serving:
    """Speeds at best; real ones are below, as links, kernels and scheduling take their time."""

    devices: int
    """Of one copy of the model: a server, or what it takes to hold the weights and the cache of one text."""
    weight_bytes: float
    largest_batch: int
    """Most texts whose caches fit beside the weights, those that stand on several devices counted on each."""
    prefill_tokens_per_second: float
    """Of one text that is read."""
    decode_tokens_per_second: float
    """Of one text that is written after a context, alone."""
    decode_tokens_per_second_at_largest_batch: float
    """Of all texts of the largest batch."""
    by_batch: tuple[tuple[int, float], ...] = ()
    """Texts that are written at once, and tokens per second of all of them."""
    by_context: tuple[tuple[int, float, float], ...] = ()
    """Tokens of a text, and tokens per second that it is read with, and that it goes on with, alone."""


def serving(
    model: LanguageModel, hardware: Hardware, length: int, precision: str, most_devices: int
) -> Serving | None:
    """Return the speeds of a model that reads `length` tokens and goes on, or of one that reads a source and writes a
    text as long; None where it keeps nothing of what it read, or does not fit on `most_devices`. The cache is in 16
    bits, or in 32 with such weights."""
    if not model.can_cache:
        return None
    size = BYTES[precision]
    weights, itemsize = size * model.num_parameters(), max(2, int(size))
    devices, memory = min(SERVER, most_devices), USABLE * hardware.memory_bytes
    while devices * memory < weights + cache_on_devices(model, length, itemsize, devices):
        if devices == most_devices:
            return None
        devices = min(2 * devices, most_devices)
    kept = cache_on_devices(model, length, itemsize, devices)
    largest = LARGEST if not kept else min(LARGEST, int((devices * memory - weights) / kept))
    peak = devices * hardware.peak(precision)
    bandwidth = devices * hardware.memory_bandwidth

    of_prefill, of_step = weights_by_share(model), weights_by_share(model, decodes=True)

    def prefill(tokens: int) -> float:
        """Return the seconds that a text is read in, or a source before the first token of a text."""
        computed = prefill_flops(model, tokens) / peak
        return max(computed, size * weights_read(of_prefill, tokens) / bandwidth)

    @cache
    def of_text(tokens: int) -> tuple[float, float]:
        """Return the bytes of a text's cache, and the FLOPs of its next token."""
        kept = cache_on_devices(model, tokens, itemsize, devices)
        return kept, next_token_flops(model, tokens)

    def step(batch: int, tokens: int = length) -> float:
        """Return the seconds of one token for each text of a batch."""
        kept, computed = of_text(tokens)
        read = size * weights_read(of_step, batch) + batch * kept
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


def cache_on_devices(model: LanguageModel, length: int, itemsize: int, devices: int) -> float:
    """Return the bytes of a text's cache on all devices; shared heads and latents count on each."""
    tensor = min(devices, SERVER)
    return sum(
        mixer.state_bytes(length, itemsize)
        * (1.0 if mixer.kept_blocks is None else tensor * share(mixer.kept_blocks, tensor))
        for mixer in model.mixers()
        if mixer.reads_state_of is None
    )


def decode_seconds(model: LanguageModel, hardware: Hardware, length: int, precision: str) -> float:
    """Return the seconds of one more token behind a text of `length` tokens on one device, at best."""
    read = BYTES[precision] * weights_read(weights_by_share(model, decodes=True), 1)
    read += cache_bytes(model, length, itemsize=max(2, int(BYTES[precision])))
    computed = next_token_flops(model, length) / hardware.peak(precision)
    return max(read / hardware.memory_bandwidth, computed)


def weights_read(by_share: Mapping[float, int], tokens: int) -> float:
    """Return the weights that tokens read together; of experts 1 - (1 - share)^tokens."""
    return sum(number * (1 - (1 - share) ** tokens) for share, number in by_share.items())


def weights_by_share(model: LanguageModel, *, decodes: bool = False) -> dict[float, int]:
    """Return the weights of a model's maps by the share of them that a token meets. Of an embedding only rows are read.

    Args:
        decodes: behind a cache, where nothing reads a source any more.
    """
    unread = {*model.source_maps} if decodes else set()
    found: dict[float, int] = {}
    for m in model.modules():
        if isinstance(m, Linear) and m not in unread:
            found[m.active_fraction] = found.get(m.active_fraction, 0) + m.weight.numel()
    return found
