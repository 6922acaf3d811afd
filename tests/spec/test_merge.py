"""How tables are laid over one another: as tables, in files with bases, and by overrides."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from archwright.spec.errors import UserError
from archwright.spec.merge import merge
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import LayerNorm, RMSNorm
from archwright.spec.overrides import flatten, toml_value
from archwright.spec.read import load

Lay = Callable[[dict[str, Any], dict[str, Any]], ModelSpec]


def test_tables_merge_and_plain_values_and_lists_are_replaced() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": 3}
    assert merge(base, {"a": {"y": [3]}, "b": 2}) == {"a": {"x": 1, "y": [3]}, "b": 2, "c": 3}


def test_another_kind_drops_the_options_and_the_same_keeps_them() -> None:
    base = {"norm": {"kind": "layer", "eps": 0.1}}
    assert merge(base, {"norm": {"kind": "rms"}}) == {"norm": {"kind": "rms"}}
    assert merge(base, {"norm": {"kind": "layer", "bias": False}}) == {
        "norm": {"kind": "layer", "eps": 0.1, "bias": False}
    }
    assert merge(base, {"norm": {"eps": 0.2}}) == {"norm": {"kind": "layer", "eps": 0.2}}


def test_neither_table_is_changed() -> None:
    base, over = {"a": {"x": 1}}, {"a": {"y": {"z": 2}}}
    merged = merge(base, over)
    merged["a"]["x"] = 9
    assert (base, over) == ({"a": {"x": 1}}, {"a": {"y": {"z": 2}}})


def _in_files(tmp_path: Path) -> Lay:
    def lay(base: dict[str, Any], over: dict[str, Any]) -> ModelSpec:
        (tmp_path / "base.toml").write_text(tomli_w.dumps(base))
        (tmp_path / "over.toml").write_text(tomli_w.dumps({"base": "base.toml", **over}))
        return load(tmp_path / "over.toml")

    return lay


def _by_overrides(tmp_path: Path) -> Lay:
    def lay(base: dict[str, Any], over: dict[str, Any]) -> ModelSpec:
        (tmp_path / "base.toml").write_text(tomli_w.dumps(base))
        words = [f"{path}={toml_value(value)}" for path, value in flatten(over).items()]
        return load(tmp_path / "base.toml").override(*words)

    return lay


@pytest.fixture(params=[_in_files, _by_overrides], ids=["files", "overrides"])
def lay(request: pytest.FixtureRequest, tmp_path: Path) -> Lay:
    made: Lay = request.param(tmp_path)
    return made


def test_another_kind_starts_from_its_own_defaults(lay: Lay) -> None:
    base = {"norm": {"kind": "layer", "eps": 0.1, "bias": False}}
    assert lay(base, {"norm": {"kind": "rms"}}).norm == RMSNorm()
    assert lay(base, {"norm": {"kind": "rms", "eps": 0.2}}).norm == RMSNorm(eps=0.2)


def test_layer_kinds_merge_with_those_of_the_base(lay: Lay) -> None:
    window = {"mask": {"kind": "window", "size": 8}}
    base = {"layer_kinds": {"local": {"attention": window}, "far": {"norm": {"kind": "layer"}}}}
    over = {"layer_kinds": {"local": {"attention": {"mask": {"size": 4}}}}}
    spec = lay(base, over)
    assert spec.layers_by_kind["local"].attention.model_dump()["mask"] == {
        "kind": "window",
        "size": 4,
    }
    assert spec.layers_by_kind["far"].norm == LayerNorm()


def test_a_partial_table_has_the_kind_of_the_default_layer(lay: Lay) -> None:
    base = {"norm": {"kind": "layer"}, "layer_kinds": {"local": {"norm": {"bias": False}}}}
    spec = lay(base, {"layer_kinds": {"local": {"norm": {"eps": 0.1}}}})
    assert spec.layers_by_kind["local"].norm == LayerNorm(bias=False, eps=0.1)


def test_another_kind_drops_the_options_of_a_partial_table_that_names_none(lay: Lay) -> None:
    base = {"norm": {"kind": "layer"}, "layer_kinds": {"local": {"norm": {"bias": False}}}}
    spec = lay(base, {"layer_kinds": {"local": {"norm": {"kind": "rms"}}}})
    assert spec.layers_by_kind["local"].norm == RMSNorm()
    assert spec.norm == LayerNorm()


def test_a_child_can_unset_what_its_base_set(lay: Lay) -> None:
    base = {
        "attention": {"num_heads": 4, "qk_norm": {"kind": "rms"}, "bias": True},
        "head": {"softcap": 30.0},
    }
    over = {
        "attention": {"num_heads": "auto", "qk_norm": {"kind": "none"}, "bias": False},
        "head": {"softcap": "none"},
    }
    assert lay(base, over).model_copy(update={"name": ""}) == ModelSpec()


def test_an_option_of_the_old_kind_is_refused(lay: Lay) -> None:
    with pytest.raises(
        UserError, match=r"norm\.bias: unknown option; accepted: kind, eps, weight, scale_in\.$"
    ):
        lay({"norm": {"kind": "layer"}}, {"norm": {"kind": "rms", "bias": False}})
