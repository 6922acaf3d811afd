"""Lenses and layouts by themselves: what they read, what they write, and what they refuse."""

from typing import Any

import pytest
import torch

from archwright.hf.families import FAMILIES
from archwright.hf.families.common import ROPE
from archwright.hf.families.granite import GRANITE_SWA, ThetaByLayer
from archwright.hf.families.llama import LLAMA
from archwright.hf.families.others import NEMOTRON
from archwright.hf.families.qwen import QWEN2
from archwright.hf.family import Family
from archwright.hf.layer_types import every_by, first_of
from archwright.hf.layouts import Same
from archwright.hf.lenses import Activation
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fixed
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}


def read(rope: Rope, **config: Any) -> dict[str, Any]:
    position: dict[str, Any] = rope.read({"rope_theta": 1e4, **config})["position"]
    return position


def test_a_share_of_coordinates_is_refused_where_whole_heads_turn() -> None:
    with pytest.raises(UserError, match=r"partial_rotary_factor: found 0\.5"):
        read(Rope(fraction=""), partial_rotary_factor=0.5)
    with pytest.raises(UserError, match=r"partial_rotary_factor: found 0\.25"):
        read(Rope(fraction=""), rope_parameters={"partial_rotary_factor": 0.25})
    assert read(Rope(), partial_rotary_factor=0.5)["fraction"] == 0.5


def test_a_share_is_written_even_if_it_is_all_as_the_class_may_think_otherwise() -> None:
    spec = NEMOTRON.spec({"partial_rotary_factor": 1.0})
    assert NEMOTRON.config(spec)["partial_rotary_factor"] == 1
    assert "partial_rotary_factor" not in LLAMA.config(LLAMA.spec({}))


def test_older_scaling_counts_before_newer_parameters() -> None:
    both = {"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": {"type": "linear", "factor": 3}}
    found = read(Rope(), **both)
    assert (found["theta"], found["scaling"]) == (1e4, {"kind": "linear", "factor": 3.0})
    assert read(Rope(scaled=False), **both)["scaling"] == {"kind": "none"}


def test_parameters_of_each_type_are_refused_where_all_layers_are_alike() -> None:
    with pytest.raises(UserError, match="found tables full_attention, sliding_attention;"):
        read(Rope(), rope_parameters={"full_attention": LINEAR, "sliding_attention": {}})
    nested = {"rope_parameters": {"full_attention": LINEAR}}
    assert read(Rope(layer_type="full_attention"), **nested)["theta"] == 100


def test_a_family_names_the_scalings_it_has() -> None:
    rope = Rope(kinds=("default", "linear"), renamed={"stretched": "linear"})
    assert read(rope, rope_parameters=LINEAR | {"rope_type": "stretched"})["scaling"]["factor"] == 2
    with pytest.raises(UserError, match=r"rope_type: found 'yarn'; .* default, linear"):
        read(rope, rope_parameters={"rope_type": "yarn", "factor": 2.0})


def test_divisors_of_one_are_none_and_written_for_each_pair() -> None:
    kind = {"kind": "longrope", "factor": 4.0, "original_length": 16, "long": [2.0] * 4}
    spec = LLAMA.spec({"head_dim": 8}).model_dump()
    spec["position"]["scaling"] = kind
    config = LLAMA.config(ModelSpec.model_validate(spec).resolved())
    assert config["rope_parameters"]["short_factor"] == [1.0] * 4
    scaling = LLAMA.spec(config).position.model_dump()["scaling"]
    assert (scaling["short"], scaling["long"]) == ((), (2.0,) * 4)


def test_a_family_may_mean_something_else_by_a_usual_name() -> None:
    tanh = {"kind": "geglu", "approximate": "tanh"}
    lens = Activation("act", gated=True, names={"tanh": tanh, "gelu": tanh})
    assert lens.read({"act": "gelu"}) == {"feedforward": tanh}
    assert lens.write({f"feedforward.{key}": value for key, value in tanh.items()}.get) == {
        "act": "tanh"
    }


def test_patterns_of_layers() -> None:
    names = {"full_attention": "F", "sliding_attention": "s"}
    config = {"pattern": 3}
    assert "".join(names[x] for x in every_by("pattern")(config, 7)) == "ssFssFs"
    assert "".join(names[x] for x in first_of(3)(config, 7)) == "FssFssF"


def test_each_layer_has_a_base_of_its_own_or_none() -> None:
    group = ThetaByLayer("thetas", ROPE)
    config = {"rope_theta": 50.0, "thetas": [0, 100.0, 2e6], "num_hidden_layers": 3}
    names = group.names(config, 3)
    found = [group.of(name, config)["position"] for name in names]
    assert [p["kind"] for p in found] == ["none", "rope", "rope"]
    assert [p.get("theta") for p in found] == [None, 100, 2e6]
    assert len(set(group.names(config | {"thetas": None}, 3))) == 1


def test_a_constant_is_written_and_another_one_refused() -> None:
    slot, written = Fixed((), Same(), torch.tensor(0.5), checked=True), torch.zeros(())
    slot.write(written, {})
    assert written == 0.5
    slot.read(written.bfloat16(), {})
    with pytest.raises(ValueError, match="values that do not match the config"):
        slot.read(torch.tensor(0.4), {})


@pytest.mark.parametrize(
    ("family", "config", "line"),
    [
        (LLAMA, {"rope_theta": "far"}, "another type than expected"),
        (LLAMA, {"rope_parameters": "far"}, "another type than expected"),
        (QWEN2, {"num_hidden_layers": 10**30}, "num_hidden_layers: found 1.00e[+]30; expected"),
        (QWEN2, {"num_hidden_layers": 10**6}, "expected 1 to 100,000"),
        (LLAMA, {"num_hidden_layers": 10**6}, "expected 1 to 100,000"),
        (QWEN2, {"layer_types": ["full_attention"]}, "types of 1 layers; expected 32"),
        (GRANITE_SWA, {"layer_rope_theta": [0, 1.0]}, "found 2 numbers; expected 24"),
    ],
)
def test_wrong_values_are_one_line(family: Family, config: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        family.spec(config)


def test_numbers_that_make_no_sense_are_one_line() -> None:
    with pytest.raises(UserError, match="a number makes no sense"):
        LLAMA.spec({"max_position_embeddings": 0, "rope_scaling": YARN})


YARN = {"type": "yarn", "original_max_position_embeddings": 0, "factor": 0}


def test_what_is_new_takes_the_place_of_what_a_family_had() -> None:
    gate = Activation("hidden_act", gated=False)
    names = {"self_attn.dense": "attention.out"}
    derived = LLAMA.derive("qwen2", "New", gate, layer_keys=names, prefix="body.")
    keys = [getattr(lens, "key", None) for lens in derived.lenses]
    assert [lens for lens in derived.lenses if isinstance(lens, Activation)] == [gate]
    assert "mlp_bias" not in keys  # which the class does not have
    assert LLAMA.derive("house", "New").lenses == LLAMA.lenses  # of which nothing is recorded
    assert set(derived.layer_keys) == set(LLAMA.layer_keys) - {"self_attn.o_proj"} | set(names)
    assert derived.layers == "body.layers.{i}."
    assert set(derived.model_keys) == {"body.embed_tokens", "body.norm", "lm_head"}


def test_other_words_for_keys_are_those_of_the_class_and_the_files() -> None:
    for word in ("num_experts", "num_local_experts"):
        spec = FAMILIES["qwen3_moe"].spec({word: 6, "num_experts_per_tok": 2})
        assert spec.model_dump()["feedforward"]["num_experts"] == 6
