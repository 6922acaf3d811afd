"""Rules that choose kernel and precision from the processor, the mask and the shape.

Times measured at the start of a run decide nothing, so the same command chooses the same on the same kind of machine.
"""

import platform
from collections.abc import Callable
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import torch

from archwright.model.model import Decoder
from archwright.spec.run_spec import RunSpec

Facts = TypeVar("Facts")

SHORT = 256
"""Tokens of a sequence below which blocks of queries save less than they cost in float32."""
ZEN_3 = "AMD EPYC (Zen 3, AVX2), one thread, 2026-11-28"
"""The machine of the float32 measurements."""
STILL_FLOAT32 = 1e-5
"""Largest relative error of a true float32 product: ten times the usual one."""


class Rule(NamedTuple, Generic[Facts]):
    """A choice, its condition, and the measurement behind it."""

    choice: str
    condition: str
    applies: Callable[[Facts], bool]
    measured: str

    @property
    def reason(self) -> str:
        return f"{self.condition} ({self.measured})"


class Attention(NamedTuple):
    """Properties of a model's attention that determine its kernel."""

    device: str
    precision: str
    length: int
    plain: bool
    """Causal or full attention in all layers, with scores that only a scale changes, and no document mask."""
    plain_scores: bool
    """No soft-cap, bias or sink in any layer."""


KERNELS: tuple[Rule[Attention], ...] = (
    Rule(
        "sdpa",
        "plain attention on CUDA",
        lambda at: at.device == "cuda" and at.plain,
        "not measured; flash kernels compute it",
    ),
    Rule(
        "flex",
        "a mask or score that SDPA has no flash kernel for, on CUDA",
        lambda at: at.device == "cuda" and can_compile_for_cuda(),
        "not measured",
    ),
    Rule(
        "sdpa",
        "FlexAttention cannot be compiled here",
        lambda at: at.device == "cuda",
        "not measured",
    ),
    Rule(
        "sdpa",
        f"scores without soft-cap, bias or sink, of fewer than {SHORT} tokens in float32",
        lambda at: at.precision == "fp32" and at.length < SHORT and at.plain_scores,
        f"{ZEN_3}: a layer's attention of 32 to 128 tokens takes 0.76 to 1.09 times as long as in blocks, "
        "median 0.93; with soft-cap, sinks or T5 bias 0.99 to 1.33",
    ),
    Rule(
        "blockwise",
        "attention on a CPU",
        lambda at: True,
        f"{ZEN_3}: in float32 sdpa takes 0.87 to 1.2 times as long for 256 tokens, 0.89 to 1.5 for 512 and "
        "1.0 to 2.6 for 2,048, least if causal or full; Intel Xeon, two threads, 2026-11-22: a training step in "
        "bf16 on 2,048 tokens 1.08 times as long if causal, 1.6 to 2.5 otherwise",
    ),
)
"""Attention kernels; the first rule that applies decides."""


class Processor(NamedTuple):
    """Properties of a device that determine its precision."""

    device: str
    amd: bool
    avx512: bool
    bf16: bool
    """Instructions for bf16 matrix products."""


PRECISIONS: tuple[Rule[Processor], ...] = (
    Rule(
        "bf16",
        "a CUDA device with bf16",
        lambda at: at.device == "cuda" and at.bf16,
        "not measured; tensor cores compute bf16 products",
    ),
    Rule(
        "bf16",
        "an ARM processor with bf16 instructions",
        lambda at: at.bf16 and platform.machine() in ("arm64", "aarch64"),
        "not measured",
    ),
    Rule(
        "bf16",
        "a processor with bf16 instructions",
        lambda at: at.bf16,
        "training steps of transformers 1.6 to 2.2 times as fast on an Intel Xeon (2026-11-22), 1.4 on an AMD EPYC "
        "(2026-11-23)",
    ),
    Rule(
        "fp32",
        "no bf16 instructions",
        lambda at: True,
        f"{ZEN_3}: bf16 products run at 0.01 to 0.04 times the rate of float32",
    ),
)
"""Precisions of products; the first rule that applies decides."""

FLOAT32: tuple[Rule[Processor], ...] = (
    Rule("highest", "true float32", lambda at: at.device == "cuda", "not measured"),
    Rule(
        "medium",
        "still true float32, from a faster library on AMD processors with AVX-512",
        lambda at: at.amd and at.avx512 and float32_error() < STILL_FLOAT32,
        "products 2.1 to 2.7 times as fast on an AMD EPYC (Zen 5), 1.09 on an AMD EPYC on 2026-11-21",
    ),
    Rule(
        "highest",
        "true float32",
        lambda at: True,
        f"{ZEN_3}: products 1.01 to 1.09 times as fast with medium",
    ),
)
"""Values of `float32_matmul_precision`; the first rule that applies decides."""


def decision(rules: tuple[Rule[Facts], ...], facts: Facts) -> tuple[str, str]:
    """Return the choice of the first rule that applies, and its reason."""
    rule = next(rule for rule in rules if rule.applies(facts))
    return rule.choice, rule.reason


def attention_of(model: Decoder, run: RunSpec, device: str, precision: str) -> Attention:
    """Return the facts about a model's attention."""
    layers = [model.spec.layer(index) for index in range(model.spec.num_layers)]
    options = [dict(layer.attention) for layer in layers]
    plain_scores = all(
        given.get("softcap", "none") == "none"
        and not given.get("sinks")
        and not layer.position.scores
        for layer, given in zip(layers, options, strict=True)
    )
    masks = [given["mask"] for given in options if "mask" in given]
    plain_masks = all(mask.shows_all for mask in masks) and run.data.packing != "document_mask"
    return Attention(
        device, precision, model.spec.context_length, plain_scores and plain_masks, plain_scores
    )


def processor(device: str) -> Processor:
    """Return the facts about a device."""
    if device == "cuda":
        return Processor(
            device, False, False, torch.cuda.is_bf16_supported(including_emulation=False)
        )
    x86_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    arm_bf16 = "bf16" in cpu_info().get("Features", "").split()
    amd = "AuthenticAMD" in cpu_info().get("vendor_id", platform.processor())
    return Processor(device, amd, torch.cpu._is_avx512_supported(), x86_bf16 or arm_bf16)


def float32_error(size: int = 512) -> float:
    """Return the largest relative error of "medium" float32 products over the layouts of their factors.

    "medium" permits bfloat16, which processors with matrix units then use.
    """
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    try:
        torch.set_float32_matmul_precision("medium")
        results = (
            a @ b,
            (b.t() @ a.t()).t(),
            torch.bmm(a[None], b[None])[0],
            a.t().contiguous().t() @ b,
        )
    finally:
        torch.set_float32_matmul_precision(before)
    return max(float((x - exact).abs().max() / exact.abs().max()) for x in results)


def can_compile_for_cuda() -> bool:
    """True if Triton supports the device, which compiled FlexAttention needs."""
    import torch.utils._triton as triton

    return triton.has_triton()


def cpu_name() -> str:
    return cpu_info().get("model name") or platform.processor() or platform.machine()


@cache
def cpu_info() -> dict[str, str]:
    """Return the first processor's entries of /proc/cpuinfo; none on systems without it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            first = file.read().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
