"""Every device is complete and plausible; who asks for another is told the nearest."""

import pytest

from archwright.spec.errors import UserError
from archwright.spec.hardware import hardware_names, load_hardware


@pytest.mark.parametrize("name", hardware_names())
def test_a_device_is_complete_and_plausible(name: str) -> None:
    device = load_hardware(name)
    assert device.name == name
    assert device.title != "none"
    assert device.source != "none"
    assert 16e9 <= device.memory_bytes <= 500e9
    # A device reads all of its memory in some hundredths of a second.
    assert 0.01 < device.memory_bytes / device.memory_bandwidth < 0.5
    assert device.interconnect_bandwidth != "none"
    assert device.interconnect_bandwidth < device.memory_bandwidth
    assert device.power == "none" or 100 <= device.power <= 2000
    peaks = [device.peak_flops[p] for p in ("fp32", "bf16", "fp8", "fp4") if p in device.peak_flops]
    assert peaks == sorted(peaks)  # fewer bits are no slower
    # Bits are traded for speed evenly: half as many, twice as fast.
    if "fp8" in device.peak_flops:
        assert device.peak("fp8") / device.peak("bf16") == pytest.approx(2, rel=0.02)


def test_the_devices_of_published_runs() -> None:
    """NVIDIA H100 Tensor Core GPU, data sheet: 989.4 TFLOP/s are half of the 1,979 that count sparsity."""
    h100, h200 = load_hardware("h100"), load_hardware("h200")
    assert h100.peak("bf16") == pytest.approx(1979e12 / 2, rel=1e-3)
    assert h100.peak_flops == h200.peak_flops
    assert h200.memory_bandwidth / h100.memory_bandwidth == pytest.approx(1.43, abs=0.01)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("h20", 'Did you mean "h200"?'),
        ("A100", 'Did you mean "a100-80gb"?'),
        ("xyzzy", "tpu-v5p, tpu-v6e, this."),
    ],
)
def test_an_unknown_device_is_one_line_with_the_nearest(name: str, end: str) -> None:
    with pytest.raises(UserError) as error:
        load_hardware(name)
    (line,) = error.value.lines
    assert line.startswith(f'hardware: found "{name}"; expected one of a100-80gb, b200, ')
    assert line.endswith(end)


def test_a_laptop_and_a_desktop_have_one_device() -> None:
    single = {name for name in hardware_names() if load_hardware(name).usual_devices == 1}
    assert single == {"m4-max", "rtx-4090", "rtx-5090"}
    assert load_hardware("h100").usual_devices == 8


def test_a_precision_that_a_device_lacks() -> None:
    with pytest.raises(UserError, match='precision: found "fp8"; tpu-v5p has bf16, int8') as error:
        load_hardware("tpu-v5p").peak("fp8")
    assert len(error.value.lines) == 1
