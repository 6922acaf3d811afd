"""How a training is split over devices: by texts, by the columns of matrices, by layers, by tokens, by experts; and how
that is written."""

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from archwright.spec.errors import UserError, nearest

Data = Literal["ddp", "zero1", "zero2", "fsdp"]
"""State that devices which read different tokens share out: none; moments; gradients, too; weights, too (Rajbhandari et
al., 2019, ZeRO, section 5)."""
DATA: tuple[Data, ...] = get_args(Data)
TITLES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "fsdp": "FSDP"}
AXES = ("tensor", "pipeline", "context", "experts")
WHOLE_NORMS = "no-sequence"
ITEM = re.compile(r"([a-z]+)=([0-9]{1,7})")


@dataclass(frozen=True)
class Split:
    """How a training is spread over devices.

    `devices` = `tensor` * `pipeline` * `replicas`, and `replicas` = `context` * `ranks`. Experts are spread over
    replicas, so that they ask for no devices of their own.
    """

    devices: int
    data: Data = "ddp"
    tensor: int = 1
    """Devices that share the columns and rows of each layer's matrices (Shoeybi et al., 2019, section 3)."""
    pipeline: int = 1
    """Stages, each with some of the layers (Narayanan et al., 2021, section 2.2)."""
    context: int = 1
    """Devices that share the tokens of a text."""
    experts: int = 1
    """Devices that share the experts of a layer."""
    sequence: bool = True
    """Whether the devices of `tensor` also share, by tokens, what stands between the matrices (Korthikanti et al.,
    2022, section 4.2.2)."""

    @property
    def replicas(self) -> int:
        """Devices that have the same part of the model before anything is sharded."""
        return self.devices // (self.tensor * self.pipeline)

    @property
    def ranks(self) -> int:
        """Groups of devices that read texts of their own."""
        return self.replicas // self.context

    @property
    def axes(self) -> dict[str, int]:
        """The numbers of devices that share something other than texts."""
        return {name: n for name in AXES if (n := int(getattr(self, name))) > 1}

    @property
    def name(self) -> str:
        """Its name."""
        if self.devices == 1:
            return "one device"
        words = [TITLES[self.data]] if self.replicas > 1 else []
        words += [
            f"{name.removesuffix('s')}-parallel {number}" for name, number in self.axes.items()
        ]
        return ", ".join(words) + (", not sequence-parallel" if not self.sequence else "")


def parse_split(text: str, devices: int) -> Split:
    """Return the split that an option describes, such as "tensor=8,pipeline=16,fsdp".

    Raises:
        UserError: words that are none, or numbers that do not go into that of the devices, one line each.
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
            words, head = (*AXES, *DATA, WHOLE_NORMS), item.partition("=")[0]
            numbers = ", ".join(f"{axis}=N" for axis in AXES)
            lines.append(
                f'split: found "{item}"; expected {numbers}, {", ".join(DATA)} or {WHOLE_NORMS}, with commas between '
                f"them.{'' if head in words else nearest(head, words)}"
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
