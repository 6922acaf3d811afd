"""Variants of one size: the widths that are chosen hit the baseline's, for all choices there are."""

from functools import partial
from pathlib import Path

import pytest

from archwright.lab.design.matching import (
    LEAST_WIDTH,
    NARROWER,
    TOLERANCE,
    count,
    matched,
    mismatch,
)
from archwright.lab.design.scaling import DIMS, SIZES, depth, scaled, shape
from archwright.lab.design.variants import arms, set_by, split
from archwright.model.build import build
from archwright.planning.cost import run_flops_per_token
from archwright.runs import RunFolder
from archwright.spec.attention import SoftmaxAttention
from archwright.spec.feedforward import Experts, FeedForward, Hidden
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.overrides import assigned, flatten, toml_value
from archwright.spec.positions import Position
from archwright.spec.read import load, load_run, load_study, preset_names, study_names
from archwright.spec.residuals import Residual
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import Match, StudySpec, parse_count
from archwright.spec.value_embeddings import ValueEmbedding
from archwright.training.data import prepare_data
from archwright.training.resolve import make_batches
from tests.tiny import tiny_run

KINDS = [
    f"{axis}.kind={kind}"
    for axis, choice in (
        ("feedforward", FeedForward),
        ("norm", Norm),
        ("residual", Residual),
        ("position", Position),
        ("attention.value_embedding", ValueEmbedding),
    )
    for kind in choice.kinds
]

ENCODER = ("modern", "attention.mask.kind=full")
"""What is compared with a model that fills in masked tokens."""
COMPARABLE = [
    name
    for name in preset_names("models")
    if not (load_run(name).objective.has_source or load_run(name).objective.second_task)
]
"""Models of one stack that predict tokens alone, as the modern block does."""


def pair(word: str, size: float = 2e5) -> tuple[ModelSpec, ModelSpec]:
    study = StudySpec(baseline=("modern",), variants={"other": tuple(split(word))})
    if word in preset_names("models"):
        objective = load_run(word).objective
        values = objective.model_dump().items()
        said = (f"objective.{key}={toml_value(value)}" for key, value in values)
        baseline = ("modern",) if objective.causal else ENCODER
        study = study.model_copy(update={"common": tuple(said), "baseline": baseline})
    first, second = arms(study, size).values()
    return first.model, second.model


@pytest.mark.parametrize(
    "word",
    [
        ":feedforward.hidden_dim=99,position.kind=axial,position.dims=[32,32]",  # no other dim
        ':feedforward.hidden_dim=100,layers.cycle=["x"],layer_kinds.x={attention={kind="latent"}}',
    ],
)
def test_widths_that_change_no_size_are_no_way_to_match(word: str) -> None:
    base, other = pair(word)
    held = {path.removeprefix("model.") for path in set_by(split(word[1:]))}
    assert not matched(other, count(base, 1024), "non_embedding", 1024, held)[1]


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize(
    "word",
    [
        k
        for k in KINDS
        if k
        not in (
            "feedforward.kind=swiglu",
            "norm.kind=rms",
            "residual.kind=pre",
            "position.kind=rope",
            "attention.value_embedding.kind=none",
        )
    ],
)
def test_every_choice_can_be_made_equal_in_size(word: str) -> None:
    base, other = pair(f":{word}")
    target = count(base, 1024)
    found, equal = matched(other, target, "non_embedding", 1024)
    assert equal
    assert abs(count(found, 1024).non_embedding / target.non_embedding - 1) <= TOLERANCE
    path, _, kind = word.partition("=")
    assert flatten(found.model_dump())[path] == kind


@pytest.mark.parametrize(
    ("word", "fits"), [(":feedforward.hidden_dim=2048", False), ("deepseek-v2", True)]
)
def test_matching_makes_no_model_of_a_few_channels(word: str, fits: bool) -> None:
    """Neither a dim of 3, nor experts of 2 hidden values."""
    base, other = pair(word, 5e4)
    held = {"feedforward.hidden_dim"} if not fits else ()
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024, held)
    assert equal == fits
    widths = [
        v for k, v in flatten(found.resolved().model_dump()).items() if k.endswith("hidden_dim")
    ]
    assert min(found.dim, *(width for width in widths if isinstance(width, int))) >= LEAST_WIDTH
    assert found.dim >= base.dim / NARROWER


def test_tables_with_a_row_for_each_token_are_no_size() -> None:
    spec = load("modern").override("dim=48", "num_layers=3", "attention.num_heads=4")
    plain, other = (
        count(s, 64) for s in (spec, spec.override("attention.value_embedding.kind=scaled"))
    )
    scalars, table = 3 * 2, 3 * 64 * 2 * 12
    assert other.non_embedding - plain.non_embedding == scalars
    assert other.parameters - plain.parameters == scalars + table


@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("match", ["non_embedding", "parameters", "flops"])
@pytest.mark.parametrize(
    "word", ["textbook", ":num_layers=2", ":num_layers=7", ":head.tied=true", ":dim=48"]
)
def test_the_asked_quantity_is_equal(word: str, match: Match) -> None:
    base, other = pair(word)
    target = count(base, 1024)
    found, equal = matched(other, target, match, 1024)
    assert equal
    assert abs(mismatch(count(found, 1024), target, match)) <= TOLERANCE
    assert found.num_layers == other.num_layers


def test_flops_are_those_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 16 tokens saves FLOPs in texts of the context, and none in documents of 8 tokens."""
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "lines.txt"
    file.write_text("|".join(f"{i:07}" for i in range(900)))
    run = tiny_run(file, "data.separator=|", "data.packing=document_mask")
    windowed = run.override("model.attention.mask.kind=window", "model.attention.mask.size=16")
    material = prepare_data(run, RunFolder(tmp_path))
    flops = [
        partial(run_flops_per_token, r, lengths=make_batches(r, material).lengths)
        for r in (run, windowed)
    ]
    base, other = (count(r.model, 320, f) for r, f in zip((run, windowed), flops, strict=True))
    # The window halves the cache of the context, whatever the documents.
    assert (other.flops_per_token, 2 * other.cache_bytes) == (
        base.flops_per_token,
        base.cache_bytes,
    )
    assert count(windowed.model, 320).flops_per_token < 0.99 * count(run.model, 320).flops_per_token
    assert matched(windowed.model, base, "flops", 320, (), flops[1]) == (windowed.model, True)


@pytest.mark.slow
def test_without_a_hidden_layer_dim_is_chosen() -> None:
    base, other = pair(":feedforward.kind=none")
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024)
    assert equal
    assert found.dim > other.dim


@pytest.mark.slow
def test_what_cannot_be_equal_is_said_and_as_near_as_may_be() -> None:
    base, other = pair(":feedforward.hidden_dim=2048")
    held = {"feedforward.hidden_dim"}
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024, held)
    assert not equal
    sizes = [
        count(spec, 1024).non_embedding / count(base, 1024).non_embedding for spec in (found, other)
    ]
    assert abs(sizes[0] - 1) < abs(sizes[1] - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", study_names())
def test_variants_of_the_studies_that_come_along_are_of_one_size(name: str) -> None:
    study = load_study(name)
    runs = arms(study, parse_count(study.size) if study.size != "auto" else 2e5)
    vocab_size, (baseline, *others) = 1024, runs
    target = count(runs[baseline].model, vocab_size)
    for width in study.widths:
        names = (name for name in runs if name.endswith(f"dim {width}"))
        assert len({count(runs[name].model, vocab_size).non_embedding for name in names}) == 1
    for variant in others if not study.widths else ():
        held = {path.removeprefix("model.") for path in set_by(study.variants[variant])}
        found, equal = matched(runs[variant].model, target, study.match, vocab_size, held)
        assert equal, f"{variant}: {mismatch(count(found, vocab_size), target, study.match):+.2%}"


def test_nothing_is_changed_where_nothing_is_to_be_equal() -> None:
    _, other = pair(":num_layers=7")
    assert matched(other, count(other, 1024), "none", 1024) == (other, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "word",
    [
        ":feedforward.hidden_dim=128",
        ":feedforward.hidden_dim=512",
        ":feedforward.ratio=1",
        ":feedforward.ratio=2",
        ":feedforward.ratio=8",
        ":feedforward.kind=gelu:feedforward.ratio=4",
        ":feedforward.kind=experts:feedforward.expert.hidden_dim=64",
        ":dim=48",
        ":attention.head_dim=16:feedforward.hidden_dim=128",
    ],
)
def test_what_a_variant_sets_stays(word: str) -> None:
    base, other = pair(word)
    given = assigned(RunSpec, word.strip(":").split(":"))
    held = {path.removeprefix("model."): value for path, value in given.items()}
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024, held)
    assert equal
    # Heads of 16 take few widths: two of these words end 0.55 and 0.57 % off.
    assert abs(count(found, 1024).non_embedding / count(base, 1024).non_embedding - 1) <= 0.006
    values = flatten(found.model_dump())
    assert {path: values[path] for path in held} == held
    if "feedforward.ratio" in held:
        layer = found.resolved().feedforward
        assert isinstance(layer, Hidden)
        assert layer.hidden_dim == pytest.approx(held["feedforward.ratio"] * found.dim, abs=4)


def test_where_all_widths_are_set_nothing_is_changed() -> None:
    base, other = pair(":dim=48:feedforward.ratio=4")
    held = ("dim", "feedforward.ratio")
    assert matched(other, count(base, 1024), "non_embedding", 1024, held) == (other, False)


@pytest.mark.slow
def test_a_width_that_a_variant_sets_for_some_layers_stays() -> None:
    own = "layer_kinds={'wide' = {feedforward = {hidden_dim = 384}}}"
    base, other = pair(f":{own}:layers.cycle=['wide', 'default']")
    held = {"layer_kinds.wide.feedforward.hidden_dim"}
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024, held)
    assert equal
    wide, default = (found.layers_by_kind[n].feedforward for n in ("wide", "default"))
    assert isinstance(wide, Hidden)
    assert isinstance(default, Hidden)
    assert wide.hidden_dim == 384
    assert default.hidden_dim < 192
    # Where no layer is the default one, its width changes nothing: dim is chosen.
    alone = other.override("layers.cycle=['wide']")
    found, equal = matched(alone, count(base, 1024), "non_embedding", 1024, held)
    assert equal
    assert found.dim < alone.dim


@pytest.mark.slow
def test_layers_with_a_ratio_of_their_own_keep_their_share() -> None:
    own = "layer_kinds={'wide' = {feedforward = {ratio = 6}}}"
    base, other = pair(f":feedforward.ratio=3:{own}:layers.cycle=['wide', 'default']")
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024)
    assert equal
    wide, default = (found.resolved().layer(i).feedforward for i in (0, 1))
    assert isinstance(wide, Hidden)
    assert isinstance(default, Hidden)
    assert wide.hidden_dim / default.hidden_dim == pytest.approx(2, rel=0.02)
    held = {"layer_kinds.wide.feedforward.ratio"}
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024, held)
    assert equal
    assert found.layers_by_kind["wide"].feedforward.model_dump()["ratio"] == 6


def test_layers_with_widths_of_their_own_keep_their_ratio() -> None:
    own = "layer_kinds={'wide' = {feedforward = {hidden_dim = 384}}}"
    base, other = pair(f":{own}:layers.cycle=['wide', 'default']")
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024)
    assert equal
    wide, default = (found.layers_by_kind[n].feedforward for n in ("wide", "default"))
    assert isinstance(wide, Hidden)
    assert isinstance(default, Hidden)
    assert wide.hidden_dim / default.hidden_dim == pytest.approx(384 / 192, rel=0.02)


def test_counts_are_those_of_the_built_model() -> None:
    base, _ = pair(":position.kind=learned")
    model = build(base.override("position.kind=learned"), vocab_size=1024)
    tables = sum(
        p.numel()
        for n, p in model.named_parameters()
        if n.split(".")[0] in ("embedding", "head", "position")
    )
    counts = count(base.override("position.kind=learned"), 1024)
    assert counts.parameters == model.num_parameters()
    assert counts.non_embedding == model.num_parameters() - tables
    assert tables == 2 * 1024 * 64 + 128 * 64


@pytest.mark.parametrize("size", [2e4, 5e4, 1e5, 2e5, 8e5, 2e6, 1e7, 2.5e7, 1.2e8, 8e8])
def test_shapes_have_about_the_size_and_a_sensible_proportion(size: float) -> None:
    dim, num_layers = shape(size)
    assert dim in DIMS
    assert 0.6 < 12 * num_layers * dim**2 / size < 1.7
    assert 12 <= dim / num_layers <= 80


def test_width_depth_and_heads_grow_together() -> None:
    """A question about heads or depth has more of them at each size that a budget may choose."""
    shapes = [shape(size) for size in SIZES]
    assert shapes[:5] == [(48, 2), (64, 3), (80, 4), (96, 5), (112, 6)]
    assert shapes == sorted(shapes) == [(dim, depth(dim)) for dim in DIMS if 48 <= dim <= 1536]
    heads = [scaled(load_run("gpt-2"), size).model.resolved().attention for size in SIZES]
    counts = [dict(attention)["num_heads"] for attention in heads]
    assert counts[:5] == [3, 4, 5, 6, 7]
    assert min(counts[5:]) >= 6


@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("name", [name for name in COMPARABLE if name != "modern"])
def test_every_published_model_can_be_compared_at_one_size(name: str) -> None:
    base, other = pair(name)
    found, equal = matched(other, count(base, 1024), "non_embedding", 1024)
    assert equal
    assert (found.num_layers, found.context_length) == (base.num_layers, base.context_length)
    published = load(name)
    whole = all(not x.feedforward.is_none for x in published.layers_by_kind.values())
    # Hidden widths of experts take large steps; layers of one branch are small at one width.
    if whole and not isinstance(published.feedforward, Experts):
        assert found.dim == base.dim
    for axis in ("norm", "residual"):
        # The width of embeddings per layer follows the model's.
        assert getattr(found, axis) == getattr(other, axis)
        assert getattr(found, axis).kind == getattr(published, axis).kind
    if not found.position.absolute:  # of which a grid has sizes that follow from the width
        assert found.position == published.position
    assert found.position.kind == published.position.kind
    # Divisors and scales of logits follow the width.
    scale = {"logit_scale": found.head.logit_scale, "logit_divisor": found.head.logit_divisor}
    assert found.head == published.head.model_copy(update=scale)
    assert (
        found.embedding.model_copy(update={"dim": published.embedding.dim}) == published.embedding
    )
    assert found.embedding_dim / found.dim == published.embedding_dim / published.dim


@pytest.mark.parametrize("name", ["modern", "textbook"])
@pytest.mark.parametrize("size", [5e4, 2e5, 2e6, 2.5e7])
def test_models_are_scaled_with_their_choices(name: str, size: float) -> None:
    before, after = load_run(name), scaled(load_run(name), size)
    for axis in ("norm", "residual", "position", "feedforward", "head", "init"):
        assert getattr(after.model, axis) == getattr(before.model, axis)
    attention = after.model.resolved().attention
    assert isinstance(attention, SoftmaxAttention)
    assert attention.num_heads * attention.head_dim == after.model.dim
    assert 0.5 < count(after.model, 1024).non_embedding / size < 2


def test_heads_are_narrowed_in_proportion() -> None:
    """DeepSeek-V2's widths by a quarter, to heads of 16; and values of their own in some layers."""
    run = load_run("modern").override("model.dim=5120", "model.attention.kind=latent")
    published = {
        "num_heads": 128,
        "query_rank": 1536,
        "kv_rank": 512,
        "nope_head_dim": 128,
        "rope_head_dim": 64,
        "value_head_dim": 128,
    }
    words = [f"model.attention.{name}={value}" for name, value in published.items()]
    local = "model.layer_kinds.local.attention.value_head_dim=64"
    small = scaled(run.override(*words, local), 2e5).model
    found = small.attention.model_dump()
    dim = small.dim
    assert {name: found[name] for name in published} == {
        "num_heads": dim // 16,
        "query_rank": 8 * round(0.3 * dim / 8),
        "kv_rank": 64,
        "nope_head_dim": 16,
        "rope_head_dim": 8,
        "value_head_dim": 16,
    }
    assert small.layer_kinds["local"]["attention"]["value_head_dim"] == 8


def test_windows_of_some_layers_keep_their_share_without_a_size_of_their_own() -> None:
    """A layer's mask may name its kind alone; its default size is scaled with the texts all the same."""
    long = load_run("modern").override("model.context_length=8192", "model.layers.cycle=['a', 'b']")
    kinds = ("window'", "chunked', size = 1024")
    tables = [f"{{attention = {{mask = {{kind = '{kind}}}}}}}" for kind in kinds]
    run = long.override(f"model.layer_kinds={{a = {tables[0]}, b = {tables[1]}}}")
    small = scaled(run, 2e5).model
    sizes = [small.layer(i).attention.model_dump()["mask"]["size"] for i in (0, 1)]
    assert (small.context_length, sizes) == (128, [64, 16])
