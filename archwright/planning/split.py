"""Data, tensor, pipeline, context and expert parallelism of a training run."""

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from archwright.spec.errors import UserError, nearest

Data = Literal["ddp", "zero1", "zero2", "fsdp"]
"""State sharded across data-parallel devices: nothing; moments; moments and gradients; moments, gradients and weights
(Rajbhandari et al., 2019, ZeRO, section 5)."""
DATA: tuple[Data, ...] = get_args(Data)
TITLES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "fsdp": "FSDP"}
AXES = ("tensor", "pipeline", "context", "experts")
WHOLE_NORMS = "no-sequence"
ITEM = re.compile(r"([a-z]+)=([0-9]{1,7})")


@dataclass(frozen=True)
class Split:
    """Distribution of a training run over devices.

    `devices` = `tensor` * `pipeline` * `replicas`, and `replicas` = `context` * `ranks`. Experts are sharded across
    replicas, so expert parallelism needs no additional devices.
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

    @property
    def replicas(self) -> int:
        """Devices with the same part of the model before any sharding."""
        return self.devices // (self.tensor * self.pipeline)

    @property
    def ranks(self) -> int:
        """Groups of devices that read different sequences."""
        return self.replicas // self.context

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
        titles += [
            f"{name.removesuffix('s')}-parallel {number}" for name, number in self.axes.items()
        ]
        return ", ".join(titles) + (", not sequence-parallel" if not self.sequence else "")


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
        if match and match[1] in AXES and int(match[2]) > 0:
            name, value = match[1], int(match[2])
        elif item in DATA:
            name, value = "data", item
        elif item == WHOLE_NORMS:
            name, value = "sequence", False
        else:
            options, head = (*AXES, *DATA, WHOLE_NORMS), item.partition("=")[0]
            numbers = ", ".join(f"{axis}=N" for axis in AXES)
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
    split = Split(devices, **values)
    group = split.tensor * split.pipeline * split.context
    if devices % group:
        raise UserError(
            f'split: found "{text}", whose groups have {group:,} devices; expected groups that go into '
            f"{devices:,}, or another number of devices, such as {-(-devices // group) * group:,}"
        )
    return split
