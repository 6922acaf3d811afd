"""Devices for planning: memory, bandwidth, peak speed and power, as published by their makers."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from archwright import presets
from archwright.spec.choice import Spec
from archwright.spec.errors import UserError, nearest
from archwright.spec.merge import validated
from archwright.spec.toml import read_toml

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"]
"""Number format of the factors of a matmul."""
Positive = Annotated[float, Field(gt=0)]


class Hardware(Spec):
    """A device: memory, bandwidth and peak speed."""

    name: str = Field("none", examples=["h200"])
    """Name of the device in options."""
    title: str = Field("none", examples=["NVIDIA H200 SXM"])
    """Name of the device in full, from its maker."""
    source: str = Field("none", examples=["NVIDIA H200 Tensor Core GPU, data sheet"])
    """Source of the values."""
    evidence: Literal["published", "measured", "given"] = "published"
    """Evidence for its speeds. published: by the maker; measured: on the device; given: by the user."""
    memory_bytes: float = Field(80e9, gt=0)
    """Memory of the device, in bytes."""
    memory_bandwidth: float = Field(2e12, gt=0)
    """Bytes per second between its memory and its cores."""
    interconnect_bandwidth: Positive | Literal["none"] = Field("none", examples=[450e9])
    """Bytes per second to the other devices of a server, in one direction."""
    devices_per_server: int = Field(8, ge=1)
    """Neighbours with `interconnect_bandwidth` between them: a server, or a pod of TPUs."""
    network_bandwidth: Positive | Literal["none"] = Field("none", examples=[50e9])
    """Bytes per second of a device to other servers, in one direction; none: not published."""
    usual_devices: int = Field(8, ge=1)
    """Devices of a usual machine, the default number of a plan."""
    power: Positive | Literal["none"] = Field("none", examples=[700.0])
    """Rated power limit in watts; none: not published."""
    peak_flops: dict[Precision, Positive] = Field(
        default_factory=dict, examples=[{"bf16": 989.4e12, "fp8": 1978.9e12}]
    )
    """Peak FLOP/s of dense matmuls, by precision of the factors, without sparsity."""

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s in a precision.

        Raises:
            UserError: The device has no published speed in it.
        """
        found = {str(name): peak for name, peak in self.peak_flops.items()}
        if precision not in found:
            raise UserError(
                f'precision: found "{precision}"; {self.name} has {", ".join(found)}.'
                + nearest(precision, found)
            )
        return found[precision]


def hardware_names() -> list[str]:
    """Return the names of all devices."""
    return sorted(path.stem for path in (presets.FOLDER / "hardware").glob("*.toml"))


def load_hardware(name: str) -> Hardware:
    """Return a device by the name of a preset, or of a TOML file.

    Raises:
        UserError: No such device.
    """
    names, path = hardware_names(), presets.FOLDER / "hardware" / f"{name}.toml"
    evidence = "published"
    if name.endswith(".toml"):
        path, evidence = Path(name), "given"
    elif name not in names:
        known = [*names, presets.THIS]
        raise UserError(
            f'hardware: found "{name}"; expected one of {", ".join(known)}.{nearest(name, known)}'
        )
    values = read_toml(path)
    return validated(
        Hardware, {"name": path.stem, "title": path.stem, "evidence": evidence, **values}
    )
