"""What a model is planned for: devices, tokens, lengths, utilisation; and how these are written."""

import math
import re
from dataclasses import dataclass

from archwright.planning.split import Split, parse_split
from archwright.spec.errors import UserError
from archwright.spec.hardware import Hardware, load_hardware

AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+]?[0-9]+)?)([kMBT]?)")
SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
PER_PARAMETER = "xparams"
BATCH = 4e6
"""Tokens of a step where nobody says."""
MOST_TOKENS = 1e16
MOST_DEVICES = 2**24
NOT_TRAINED_IN = ("int8", "fp4")
"""Precisions that models are served in, and that no training is planned in."""
MOST_PRICE = 1e6


@dataclass(frozen=True)
class Workload:
    """Devices, and what they are to do."""

    hardware: Hardware
    devices: int
    precision: str
    tokens: float
    """Of a training; times the number of parameters where `per_parameter`."""
    per_parameter: bool
    batch_tokens: float
    """Of a step of training."""
    batch: str | None
    """How these were asked for; None: they were not, and are as many as a text has where that is longer."""
    context: int | None
    """Tokens of a text; None: what the model was trained on."""
    mfu: tuple[float, float]
    """Least and most share of the peak that a training reaches."""
    price: float | None
    """Of a device for an hour."""
    split: Split | None = None
    """How the training is split; None: the first way that fits."""
    micro_batch: int | None = None
    """Sequences that a group of devices reads at once; None: as many as fit."""

    @property
    def training_precision(self) -> str:
        """Precision in which a training is planned: the one that is asked for, but where none trains in it."""
        return "bf16" if self.precision in NOT_TRAINED_IN else self.precision

    @property
    def training_peak(self) -> float:
        """FLOP/s of all devices at best, in training."""
        return self.devices * self.hardware.peak(self.training_precision)


def workload(
    *,
    hardware: str | Hardware = "h100",
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
    """Return what is asked for.

    Args:
        devices: by default as many as a usual machine has of the hardware.

    Raises:
        UserError: what cannot be, one line each.
    """
    lines: list[str] = []
    device = None
    try:
        device = hardware if isinstance(hardware, Hardware) else load_hardware(hardware)
        device.peak(precision)
    except UserError as error:
        lines += error.lines
    if devices is None:
        devices = 1 if device is None else device.usual_devices
    amount = _amount(tokens.removesuffix(PER_PARAMETER))
    if not 0 < amount <= MOST_TOKENS:
        lines.append(f'tokens: found "{tokens}"; expected a number such as 15T, 300B or 20xparams')
    batch_tokens = BATCH if batch is None else _amount(batch)
    if not 1 <= batch_tokens <= MOST_TOKENS:
        lines.append(f'batch: found "{batch}"; expected tokens of a step, such as 4M or 512k')
    if not 1 <= devices <= MOST_DEVICES:
        lines.append(f"devices: found {devices}; expected 1 to {MOST_DEVICES:,}")
    if context is not None and not 1 <= context <= 2**30:
        lines.append(f"context: found {context}; expected 1 to {2**30:,}")
    if micro_batch is not None and micro_batch < 1:
        lines.append(f"micro-batch: found {micro_batch}; expected 1 or more sequences")
    if price is not None and not 0 <= price <= MOST_PRICE:
        lines.append(f"price: found {price:g}; expected 0 to {MOST_PRICE:,.0f}")
    shares = [_share(text) for text in mfu.split("-")]
    if len(shares) > 2 or not all(0 < share <= 1 for share in shares) or shares != sorted(shares):
        lines.append(f'mfu: found "{mfu}"; expected a share of the peak such as 0.4, or 0.3-0.5')
    given = None
    try:
        given = None if split == "auto" else parse_split(split, max(1, devices))
    except UserError as error:
        lines += error.lines
    if lines or device is None:
        raise UserError(*lines)
    by_parameter = tokens.endswith(PER_PARAMETER)
    limits = shares[0], shares[-1]
    return Workload(
        device,
        devices,
        precision,
        amount,
        by_parameter,
        batch_tokens,
        batch,
        context,
        limits,
        price,
        given,
        micro_batch,
    )


def _amount(text: str) -> float:
    """Return a number of tokens; NaN where it is none."""
    match = AMOUNT.fullmatch(text.replace("_", ""))
    return float(match[1]) * SCALES[match[2]] if match else math.nan


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
