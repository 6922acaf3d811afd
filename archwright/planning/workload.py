"""Options of a plan: devices, tokens, lengths and utilisation, and how to parse them."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from archwright.planning.cost import BACKWARD
from archwright.planning.split import Split, parse_split
from archwright.planning.training_memory import USABLE, Setup
from archwright.spec.errors import UserError
from archwright.spec.hardware import Hardware, load_hardware
from archwright.spec.overrides import override

AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+]?[0-9]+)?)([kMBT]?)")
SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
PER_PARAMETER = "xparams"
BATCH = 4e6
"""Default tokens per step."""
MOST_TOKENS = 1e16
MOST_DEVICES = 2**24
NOT_TRAINED_IN = ("int8", "fp4")
"""Precisions for serving only."""
MOST_PRICE = 1e6
MOST_BUBBLE = 1.0
"""Largest pipeline bubble: idle time over compute time."""
FEW_SEQUENCES = "few sequences"
"""Reason if a step has fewer micro-batches than groups of devices."""


@dataclass(frozen=True)
class Workload:
    """Devices and the training and serving planned on them."""

    hardware: Hardware
    devices: int
    precision: str
    tokens: float
    """Training tokens, per parameter if `per_parameter`."""
    per_parameter: bool
    batch_tokens: float
    """Tokens per training step."""
    batch: str | None
    """`batch_tokens` as written by the user; None: the default, or one sequence if that is longer."""
    context: int | None
    """Tokens per sequence; None: the context_length of the model."""
    mfu: tuple[float, float]
    """Smallest and largest model FLOPs utilisation, 0 to 1."""
    price: float | None
    """Price of a device-hour."""
    split: Split | None = None
    """Split of the training; None: the fastest that fits."""
    micro_batch: int | None = None
    """Sequences per micro-batch; None: the largest number that fits."""

    @property
    def texts(self) -> float:
        """Sequences per training step, once `context` is known."""
        assert self.context is not None
        return self.batch_tokens / self.context

    @property
    def server(self) -> int:
        """Devices per server."""
        return self.hardware.devices_per_server

    @property
    def memory(self) -> float:
        """Usable bytes per device."""
        return USABLE * self.hardware.memory_bytes

    def why_not(self, way: Setup) -> str:
        """Return the reason why a setup does not fit; empty if it fits."""
        if way.split.ranks * way.batch.micro > self.texts:
            return FEW_SEQUENCES
        if way.memory.total > self.memory:
            return "memory"
        return "pipeline bubble" if way.bubble > MOST_BUBBLE and self.split is None else ""

    def links(self, way: Setup) -> dict[str, float | None]:
        """Return the seconds per step of the links that carry bytes, at full bandwidth; None: unknown."""
        device = self.hardware
        sizes = {
            "inside servers": (way.inside, device.interconnect_bandwidth),
            "between servers": (way.between, device.network_bandwidth),
        }
        return {
            name: None if bandwidth == "none" else number / bandwidth
            for name, (number, bandwidth) in sizes.items()
            if number
        }

    def exchange(self, way: Setup) -> float | None:
        """Return the seconds of communication per step at full bandwidth, of the slower links.

        None without communication or a known bandwidth.
        """
        seconds = [*self.links(way).values()]
        known = [each for each in seconds if each is not None]
        return max(known) if known and len(known) == len(seconds) else None

    def compute(self, way: Setup, flops_per_token: float) -> float:
        """Return the seconds of compute per step at peak FLOP/s, with recomputation and bubble."""
        again = 1 / (1 + BACKWARD) if way.checkpointing == "full" else 0.0
        seconds = flops_per_token * self.batch_tokens / self.training_peak
        return seconds * (1 + again) * (1 + way.bubble)

    def seconds(self, way: Setup, flops_per_token: float) -> float:
        """Return the shortest time of a step: of compute, or of the slower known links."""
        sent = (each or 0.0 for each in self.links(way).values())
        return max(self.compute(way, flops_per_token), *sent, 0.0)

    @property
    def training_precision(self) -> str:
        """Training precision: `precision`, or bf16 if that is for serving only."""
        return "bf16" if self.precision in NOT_TRAINED_IN else self.precision

    @property
    def training_peak(self) -> float:
        """Peak training FLOP/s of all devices."""
        return self.devices * self.hardware.peak(self.training_precision)


def workload(
    *,
    hardware: str | Hardware = "h100",
    hardware_keys: Sequence[str] = (),
    devices: int | None = None,
    precision: str = "bf16",
    tokens: str = "20xparams",
    batch: str | None = None,
    context: int | None = None,
    mfu: str = "0.3-0.5",
    price: float | None = None,
    split: str = "auto",
    micro_batch: int | None = None,
) -> Workload:
    """Parse the options of a plan.

    Args:
        hardware_keys: changed values of the hardware: "network_bandwidth=25e9".
        devices: number of devices. Default: a typical machine of the hardware.

    Raises:
        UserError: invalid options.
    """
    lines: list[str] = []
    device = None
    try:
        device = hardware if isinstance(hardware, Hardware) else load_hardware(hardware)
        if not hardware_keys:
            device.peak(precision)
    except UserError as error:
        lines += error.lines
    if device is not None and hardware_keys:
        try:
            device = override(device, ("evidence=given", *hardware_keys))
            device.peak(precision)
        except UserError as error:
            lines += (f"hardware.{line}" for line in error.lines)
    if devices is None:
        devices = 1 if device is None else device.usual_devices
    lines += _mistakes(tokens, batch, devices, context, micro_batch, price, mfu)
    fixed = None
    try:
        fixed = None if split == "auto" else parse_split(split, max(1, devices))
    except UserError as error:
        lines += error.lines
    if lines or device is None:
        raise UserError(*lines)
    shares = _shares(mfu)
    return Workload(
        device,
        devices,
        precision,
        tokens=_amount(tokens.removesuffix(PER_PARAMETER)),
        per_parameter=tokens.endswith(PER_PARAMETER),
        batch_tokens=BATCH if batch is None else _amount(batch),
        batch=batch,
        context=context,
        mfu=(shares[0], shares[-1]),
        price=price,
        split=fixed,
        micro_batch=micro_batch,
    )


def _mistakes(
    tokens: str,
    batch: str | None,
    devices: int,
    context: int | None,
    micro_batch: int | None,
    price: float | None,
    mfu: str,
) -> Iterator[str]:
    """Yield a line for each option out of its range."""
    if not 0 < _amount(tokens.removesuffix(PER_PARAMETER)) <= MOST_TOKENS:
        yield f'tokens: found "{tokens}"; expected a number such as 15T, 300B or 20xparams'
    if batch is not None and not 1 <= _amount(batch) <= MOST_TOKENS:
        yield f'batch: found "{batch}"; expected tokens of a step, such as 4M or 512k'
    if not 1 <= devices <= MOST_DEVICES:
        yield f"devices: found {devices}; expected 1 to {MOST_DEVICES:,}"
    if context is not None and not 1 <= context <= 2**30:
        yield f"context: found {context}; expected 1 to {2**30:,}"
    if micro_batch is not None and micro_batch < 1:
        yield f"micro-batch: found {micro_batch}; expected 1 or more sequences"
    if price is not None and not 0 <= price <= MOST_PRICE:
        yield f"price: found {price:g}; expected 0 to {MOST_PRICE:,.0f}"
    shares = _shares(mfu)
    if len(shares) > 2 or not all(0 < share <= 1 for share in shares) or shares != sorted(shares):
        yield f'mfu: found "{mfu}"; expected a share of the peak such as 0.4, or 0.3-0.5'


def _shares(mfu: str) -> list[float]:
    """Return the ends of a range; NaN if the text is invalid."""
    try:
        return [float(text) for text in mfu.split("-")]
    except ValueError:
        return [math.nan]


def _amount(text: str) -> float:
    """Return a number of tokens; NaN if the text is invalid."""
    match = AMOUNT.fullmatch(text.replace("_", ""))
    return float(match[1]) * SCALES[match[2]] if match else math.nan
