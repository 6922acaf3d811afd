"""A family whose layers take turns between attention and a recurrence, written as one is added to the package."""

import json
from pathlib import Path

import pytest
import torch

from archwright import hf
from archwright.hf.exporting import exportable, fit, nearest_fit
from archwright.hf.families import FAMILIES
from archwright.hf.families.llama import LLAMA
from archwright.hf.family import Family
from archwright.hf.layer_types import Layers, Listed, Role
from archwright.hf.lenses import MISSING, Field, write_all
from archwright.model import build
from archwright.plugins import load_parts_file
from archwright.presets import FOLDER
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load

MAPS = ("query", "key", "value", "out", "logit")
TYPES = {
    "full_attention": Role({"recurrence.kind": "none"}),
    "linear_attention": Role(
        {"attention.kind": "none", "position.kind": "none", "recurrence.kind": "my_mixer"},
        (Field("linear_num_heads", "recurrence.num_heads"),),
    ),
}
HYBRID = LLAMA.derive(
    "averaged",
    "AveragedForCausalLM",
    groups=(Layers(Listed(), TYPES),),
    layer_keys={f"averaging.{name}": f"recurrence.{name}" for name in MAPS},
    undeclared={"linear_num_heads": 4},
)

RECURRENT = (
    *("attention.kind=none", "position.kind=none"),
    *("recurrence.kind=my_mixer", "recurrence.num_heads=2"),
)
MOSTLY_RECURRENT = (
    *RECURRENT,
    'layer_kinds={full={attention={kind="softmax",num_heads=4,num_kv_heads=2},position={kind="rope",theta=500.0},'
    'recurrence={kind="none"}}}',
    'layers.cycle=["default","default","default","full"]',
)
MOSTLY_ATTENTION = (
    "position.theta=500.0",
    *(f"layer_kinds.linear.{word}" for word in RECURRENT),
    'layers.cycle=["linear","default","default"]',
)


@pytest.fixture(autouse=True)
def hybrid(visitors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    load_parts_file(FOLDER / "skeletons" / "mixer.py")
    monkeypatch.setitem(FAMILIES, "averaged", HYBRID)


def spec(words: tuple[str, ...]) -> ModelSpec:
    base = load("modern").override("dim=64", "num_layers=4", "vocab_size=128", "context_length=64")
    if words is MOSTLY_ATTENTION:
        base = base.override("attention.num_heads=4", "attention.num_kv_heads=2")
    return base.override(*words)


@pytest.mark.parametrize(
    "words", [MOSTLY_RECURRENT, MOSTLY_ATTENTION], ids=["recurrent", "attention"]
)
def test_a_hybrid_is_written_and_read(words: tuple[str, ...], tmp_path: Path) -> None:
    model = build(spec(words), seed=0).eval()
    assert hf.save(model, tmp_path / "out") == "averaged"
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert (config["num_key_value_heads"], config["linear_num_heads"]) == (2, 2)
    back = hf.load(tmp_path / "out").model
    assert [layer.attention.is_none for layer in map(back.spec.layer, range(4))] == [
        kind == "linear_attention" for kind in config["layer_types"]
    ]
    tokens = torch.arange(12)[None]
    assert torch.equal(back(tokens).logits, model(tokens).logits)
    # A detail of either mixer that the family dropped would show.
    assert exportable(back.spec, "averaged") is HYBRID
    assert {layer.position.kind for layer in back.spec.layers_by_kind.values()} == {"none", "rope"}


def test_other_families_do_not_fit_a_recurrence_and_say_so() -> None:
    del FAMILIES["averaged"]
    best = nearest_fit(spec(RECURRENT))
    assert any(line.startswith('recurrence.kind = "my_mixer"') for line in best.blocking)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_writers_survive_models_without_their_values(family: Family) -> None:
    groups = (*family.groups, *family.encoder_groups)
    for lens in (*family.lenses, *(lens for group in groups for lens in group.lenses)):
        assert isinstance(write_all([lens], lambda path: MISSING), dict)


@pytest.mark.parametrize("words", [RECURRENT, ("feedforward.kind=none",), ("norm.kind=dyt",)])
def test_every_family_is_compared_with_unusual_models(words: tuple[str, ...]) -> None:
    resolved = spec(words).resolved()
    assert all(
        fit(resolved, family).blocking for name, family in FAMILIES.items() if name != "averaged"
    )
