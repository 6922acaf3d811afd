"""A family whose layers take turns between attention and a recurrence, written as one is added to the package."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

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
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from tests.hf.library import build as library_model
from tests.hf.library import randomise, save

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


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("kimi_linear", "mla_use_nope", False),
        ("kimi_linear", "hidden_act", "situ"),
        ("bailing_hybrid", "expert_swiglu_limit_list", [0.0, 7.0]),
        ("bailing_hybrid", "q_lora_rank", 256),
        ("minimax", "hidden_act", "gelu"),
    ],
)
def test_options_that_a_class_ignores_or_lacks_are_refused(
    model_type: str, key: str, value: object
) -> None:
    with pytest.raises(UserError, match=key) as refused:
        FAMILIES[model_type].spec({key: value})
    assert len(refused.value.lines) == 1


def test_delta_attention_is_read_from_published_and_from_library_files() -> None:
    """The library's class overwrites `head_dim` by the width of the rotary key."""
    read = FAMILIES["bailing_hybrid"].spec
    published, library = read({"head_dim": 96}), read({"head_dim": 64, "linear_head_dim": 96})
    assert published.recurrence == library.recurrence
    table = {"head_dim": 96, "num_heads": 5, "full_attn_layers": [2, 27]}
    spec = FAMILIES["kimi_linear"].spec({"linear_attn_config": table})
    sizes = spec.recurrence.model_dump()
    assert (sizes["num_heads"], sizes["head_dim"], sizes["gate_rank"]) == (5, 96, 96)
    assert sizes["decay"]["rank"] == 96
    full = [i for i in range(1, 28) if not spec.layer(i - 1).attention.is_none]
    assert full == table["full_attn_layers"]
    config = FAMILIES["kimi_linear"].config(spec)
    assert config["linear_attn_config"]["full_attn_layers"] == [2, 27]
    assert config["layer_types"].count("full_attention") == 2


def test_a_half_rotated_minimax_is_read_and_not_written() -> None:
    """The library's class rotates whole heads."""
    family = FAMILIES["minimax"]
    spec = family.spec({"rotary_dim": 64, "head_dim": 128})
    assert fit(spec, family).blocking == ("position.fraction = 0.5 (has 1.0)",)
    assert fit(family.spec({"head_dim": 128}), family).blocking == ()


def test_a_file_with_other_decays_is_refused(tmp_path: Path) -> None:
    words = ("dim=32", "num_layers=2", "vocab_size=64", "context_length=32")
    small = load("minimax-text-01").tiny().override("layer_kinds.full.position.fraction=1", *words)
    model = build(small.override('layers.cycle=["default","full"]'), seed=0)
    assert hf.save(model, tmp_path) == "minimax"
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.slope_rate"] *= 2
    save_file(tensors, file)
    with pytest.raises(UserError, match="slope_rate: found values that do not match the config"):
        hf.load(tmp_path)


@pytest.mark.parametrize("name", ["kimi_linear", "bailing_hybrid", "minimax"])
def test_pieces_of_a_long_text_have_the_logits_of_the_library(name: str, tmp_path: Path) -> None:
    """Pieces end around the borders of chunks of 64 tokens; the library reads the text whole."""
    limit = "max_position_embeddings" if name == "minimax" else "model_max_length"
    theirs = randomise(library_model(name, **{limit: 256}))
    model = hf.load(save(theirs, tmp_path)).model
    tokens = torch.randint(4, 128, (2, 194), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, cache = theirs(tokens).logits, model.new_cache()
        pieces = [model(piece, cache=cache).logits for piece in tokens.split([63, 1, 1, 64, 65], 1)]
        double = model.double()(tokens).logits
    found = torch.cat(pieces, 1)
    error = float((found - double).abs().max())
    assert float((found - whole).abs().max()) <= max(5e-5, 3 * error)
