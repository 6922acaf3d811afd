"""Solved dimensions against all of them tried one by one."""

import pytest

from archwright.model import build
from archwright.planning.cost import flops_per_token
from archwright.planning.memory import cache_bytes
from archwright.planning.solve import match
from archwright.spec.errors import UserError
from archwright.spec.hardware import load_hardware
from archwright.spec.read import load

SMALL = load("modern").override(
    "dim=64", "num_layers=3", "context_length=64", "vocab_size=128", "attention.num_heads=4",
    "attention.num_kv_heads=2", "feedforward.hidden_dim=96",
)  # fmt: skip


def test_the_nearest_of_all_widths_is_found() -> None:
    def parameters(width: int) -> int:
        spec = SMALL.override(f"feedforward.hidden_dim={width}")
        return build(spec, device="meta").num_parameters()

    wanted = parameters(37) + 100
    found = match(SMALL, "feedforward.hidden_dim", parameters=wanted)
    assert found.value == min(range(1, 80), key=lambda n: abs(parameters(n) - wanted)) == 37
    assert found.found == wanted - 100


@pytest.mark.parametrize("free", ["num_layers", "feedforward.hidden_dim", "attention.head_dim"])
def test_flops_and_parameters_return(free: str) -> None:
    """From what a model has to the model; steps of two keep heads whole."""
    value = {"num_layers": 10, "feedforward.hidden_dim": 250, "attention.head_dim": 34}[free]
    model = build(SMALL.override(f"{free}={value}"), device="meta")
    for asked in (
        {"parameters": float(model.num_parameters())},
        {"flops": flops_per_token(model, 64)},
    ):
        found = match(SMALL, free, step=2, **asked)  # type: ignore[arg-type]
        assert (found.value, found.found) == (value, *asked.values())


def test_heads_for_a_cache_and_layers_for_a_time() -> None:
    wanted = cache_bytes(build(SMALL.override("attention.num_kv_heads=4"), device="meta"), 64)
    assert match(SMALL, "attention.num_kv_heads", cache_size=float(wanted)).value == 4
    hardware = load_hardware("h100")
    llama = load("llama-3-8b")
    found = match(llama, "num_layers", decode_time=4e-3, hardware=hardware)
    more, less = (
        match(llama, "num_layers", decode_time=t, hardware=hardware).value for t in (8e-3, 2e-3)
    )
    assert less < found.value < more
    assert found.found == pytest.approx(4e-3, rel=0.1)


@pytest.mark.parametrize(("wanted", "nearest"), [(1.0, 1), (1e15, 2**22)])
def test_what_no_value_comes_to_is_a_line_with_the_nearest(wanted: float, nearest: int) -> None:
    spec = SMALL.override(f"feedforward.hidden_dim={nearest}")
    found = build(spec, device="meta").num_parameters()
    left = f"{found:,.6g}, {found / wanted - 1:+.1%}"
    with pytest.raises(UserError, match=f"comes to; the nearest is {nearest}, with ") as error:
        match(SMALL, "feedforward.hidden_dim", parameters=wanted)
    assert str(error.value).endswith(left)


def test_the_most_heads_are_no_power_of_two() -> None:
    spec = SMALL.override("dim=192", "attention.num_heads=12", "attention.head_dim=16")
    wanted = cache_bytes(build(spec.override("attention.num_kv_heads=12"), device="meta"), 64)
    found = match(spec, "attention.num_kv_heads", cache_size=float(wanted))
    assert (found.value, found.found) == (12, wanted)


def test_what_cannot_be_solved_is_a_line() -> None:
    with pytest.raises(UserError, match="expected one of parameters"):
        match(SMALL, "num_layers")
    with pytest.raises(UserError, match="parameters: found 0; expected more than 0"):
        match(SMALL, "num_layers", parameters=0)
    with pytest.raises(UserError, match="no influence"):
        match(SMALL, "feedforward.hidden_dim", cache_size=1e6)
    with pytest.raises(UserError, match="unknown key"):
        match(SMALL, "num_layer", parameters=1e6)
