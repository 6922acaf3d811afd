"""Words become runs that differ in what was asked, and in nothing that must be equal."""

from pathlib import Path

import pytest

from archwright.lab.design.variants import arms, is_variant, run_key, sized_by_user, split, with_lr
from archwright.plugins import load_parts_file
from archwright.spec.errors import UserError
from archwright.spec.read import diff, load_study, study_names
from archwright.spec.study_spec import StudySpec, parse_count


def study(*words: str, **options: object) -> StudySpec:
    first, *rest = words
    named = {word: tuple(split(word)) for word in rest}
    return StudySpec.model_validate({"baseline": tuple(split(first)), "variants": named} | options)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("modern", ["modern"]),
        ("modern:norm.kind=layer", ["modern", "norm.kind=layer"]),
        ("modern:norm.kind=layer:dim=64", ["modern", "norm.kind=layer", "dim=64"]),
        ("modern:norm.kind=layer,dim=64", ["modern", "norm.kind=layer", "dim=64"]),
        (":dim=64", ["dim=64"]),
        ("mine.toml:dim=64", ["mine.toml", "dim=64"]),
        (
            ':a.mask={kind="window",size=4},dim=8,b=[{c=1},{d=2}]:e=1',
            ['a.mask={kind="window",size=4}', "dim=8", "b=[{c=1},{d=2}]", "e=1"],
        ),
        ("modern:layers.cycle=['a', 'default']", ["modern", "layers.cycle=['a', 'default']"]),
    ],
)
def test_a_word_is_a_name_and_what_it_changes(word: str, parts: list[str]) -> None:
    assert split(word) == parts
    assert is_variant(word)


def test_a_key_is_no_variant() -> None:
    assert not is_variant("data.text=notes.txt")
    assert not is_variant("data.text=C:notes.txt")


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("norm.kind=layer", "model.norm.kind=layer"),
        ("model.norm.kind=layer", "model.norm.kind=layer"),
        ("optimizer.lr=1", "optimizer.lr=1"),
        ("init.kind=gpt2", "model.init.kind=gpt2"),
        ("init.from=runs/a", "init.from=runs/a"),
        ("nrom.kind=layer", "nrom.kind=layer"),
        ("optimiser.lr=1", "optimiser.lr=1"),
    ],
)
def test_keys_of_models_need_no_prefix(word: str, key: str) -> None:
    assert run_key(word) == key


@pytest.mark.parametrize("size", [5e4, 4e5, None])
def test_a_branch_of_another_kind_is_as_large_as_the_baseline_s(size: float | None) -> None:
    """Its own defaults are 4 heads at every size, and widths that follow from them; what words set stays."""
    load_parts_file(Path(__file__).parents[1] / "outside" / "differential.py")
    words = (":attention.kind=differential", ":attention.kind=latent", ":feedforward.kind=gelu")
    given = ":attention.kind=differential,attention.num_heads=2"
    base, own, latent, gelu, told = (
        dict(run.model.resolved()) for run in arms(study("modern", *words, given), size).values()
    )
    sizes = dict(base["attention"])
    assert own["attention"].num_heads == latent["attention"].num_heads == sizes["num_heads"]
    assert latent["attention"].value_head_dim == sizes["value_head_dim"]
    assert gelu["feedforward"].hidden_dim == base["feedforward"].hidden_dim
    assert told["attention"].num_heads == 2
    assert {own["dim"], latent["dim"], gelu["dim"]} == {base["dim"]}


def test_heads_that_the_scaled_model_has_not_are_refused_with_its_width() -> None:
    for words in (
        ("modern", ":attention.num_kv_heads=8"),
        ("modern:attention.num_kv_heads=8", "textbook"),
    ):
        with pytest.raises(UserError) as caught:
            arms(study(*words), 5e4)
        assert caught.value.lines[0].endswith(
            "num_kv_heads: found 8; expected a divisor of num_heads = 3, scaled to dim 48: say auto, or give a "
            "larger --size"
        )
    with pytest.raises(UserError, match=r"expected a divisor of num_heads = \d+$"):
        arms(study("modern", ":attention.num_kv_heads=7"), None)


def test_variants_differ_from_the_baseline_in_what_was_asked() -> None:
    found = arms(study("modern", ":norm.kind=layer", "modern:norm.kind=layer:dim=96"), 2e5)
    base, layer, wide = found.values()
    lines = diff(base, layer)
    assert lines[0] == 'model.norm.kind: "rms" -> "layer"'
    assert all(line.startswith("model.norm.") for line in lines)
    assert wide.model.dim == 96
    assert base.model.dim == 64


def test_another_model_is_scaled_like_the_baseline() -> None:
    textbook, modern = arms(study("textbook", "modern"), 2e5).values()
    same = ("dim", "num_layers", "context_length", "vocab_size")
    for name in same:
        assert getattr(textbook.model, name) == getattr(modern.model, name)
    assert textbook.model.residual.kind == "post"
    assert modern.model.attention.num_kv_heads < modern.model.attention.num_heads
    assert textbook.optimizer == modern.optimizer
    assert textbook.schedule == modern.schedule


def test_a_table_of_another_width_keeps_its_share() -> None:
    for run in arms(study("opt-350m", ":norm.kind=rms"), 2e5).values():
        assert run.model.embedding.dim == run.model.dim // 2


def test_common_words_are_for_all_and_variants_may_set_them_again() -> None:
    asked = study("modern:dim=32", ":dim=96", common=("dim=64", "batch_size=4"))
    first, second = arms(asked, None).values()
    assert (first.model.dim, second.model.dim) == (32, 96)
    assert first.batch_size == second.batch_size == 4


@pytest.mark.parametrize(("size", "tokens"), [(1e5, 512), (2e5, 1024), (4e5, 1024), (8e5, 2048)])
@pytest.mark.parametrize("length", [64, 128, 512, 4096])
def test_a_step_has_as_many_tokens_whatever_the_length_of_texts(
    size: float, tokens: int, length: int
) -> None:
    words = (f"model.context_length={length}",) if length != 128 else ()
    for run in arms(study("modern", ":norm.kind=layer", common=words), size).values():
        assert run.model.context_length == length
        assert run.tokens_per_step == max(tokens, length)
    (run, _) = arms(
        study("modern", ":norm.kind=layer", common=(*words, "batch_size=3")), size
    ).values()
    assert run.batch_size == 3


def test_a_given_size_is_kept() -> None:
    assert sized_by_user(study("modern", ":norm.kind=layer", common=("model.dim=96",)))
    assert sized_by_user(study("demo", ":norm.kind=layer"))
    assert not sized_by_user(study("modern", ":num_layers=2"))
    given = arms(study("modern", ":norm.kind=layer", common=("model.dim=96",)), None)
    assert {run.model.dim for run in given.values()} == {96}


@pytest.mark.parametrize(
    ("words", "options", "line"),
    [
        (("modern", "modren"), {}, '"modren": no such preset'),
        (("modern", ":norm.kind=lyer"), {}, 'found "lyer"'),
        (("modern", ":nrom.kind=layer"), {}, 'Did you mean "norm.kind"?'),
        (("modern", "modern"), {}, "named twice"),
        (("modern", ":num_kv_heads=3"), {}, 'Did you mean "model.attention.num_kv_heads"?'),
        (("modern", ":context_length=64"), {}, "say it once for all, model.context_length=..."),
        (("modern", ":data.text=other.txt"), {}, "say it once for all, data.text=..."),
        (("modern", ":batch_size=2"), {}, "say it once for all, batch_size=..."),
        (
            ("modern", ":seed=2"),
            {},
            "seed: decided by the study, for all its runs; give --first-seed N",
        ),
        (
            ("modern", ":norm.kind=layer", "modern:dim=64:budget=3m"),
            {},
            "budget: decided by the study",
        ),
        (
            ("modern", ":norm.kind=layer"),
            {"common": ("evaluate.stride=8",)},
            "evaluate.stride: decided by the study, for all its runs; leave it out",
        ),
        (
            ("modern:machine.num_steps=5", ":norm.kind=layer"),
            {},
            "machine.num_steps: decided by the study, for all its runs; give --budget Nsteps",
        ),
        (
            ("modern", ":norm.kind=layer:machine.precision=bf16"),
            {},
            ":norm.kind=layer:machine.precision=bf16: machine.precision: all variants are trained by one machine; "
            "say it once for all, machine.precision=..., as a word of its own",
        ),
        (("modern",), {}, "compare with what?"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(
    words: tuple[str, ...], options: dict[str, object], line: str
) -> None:
    with pytest.raises(UserError) as caught:
        arms(study(*words, **options), 2e5)
    assert line in caught.value.lines[0]
    assert all("\n" not in said for said in caught.value.lines)


def test_another_text_is_refused_in_one_line_whatever_options_it_has() -> None:
    with pytest.raises(UserError) as caught:
        arms(study("modern", ":data.text=mqar"), 2e5)
    (line,) = caught.value.lines
    assert "say it once for all, data.text=..." in line


def test_what_is_wrong_with_all_variants_is_said_once_and_of_none() -> None:
    with pytest.raises(UserError) as caught:
        arms(study("modern", "textbook", ":norm.kind=layer", common=("data.txet=notes.txt",)), 2e5)
    (line,) = caught.value.lines
    assert line.startswith("data.txet: unknown key")
    assert line.endswith('Did you mean "data.text"?')


def test_what_is_wrong_with_one_variant_is_said_of_it() -> None:
    with pytest.raises(UserError) as caught:
        arms(study("modern", "textbook", "textbook:norm.kind=lyer"), 2e5)
    (line,) = caught.value.lines
    assert line.startswith("textbook:norm.kind=lyer: model.norm.kind: found")


@pytest.mark.parametrize("name", study_names())
def test_studies_that_come_along_are_good(name: str) -> None:
    found = load_study(name)
    assert found.question.endswith("?")
    assert found.source
    runs = arms(found, parse_count(found.size) if found.size != "auto" else 2e5)
    assert len(runs) == (len(found.variants) + 1) * max(1, len(found.widths)) >= 3


def test_a_second_learning_rate_keeps_its_ratio() -> None:
    run = next(iter(arms(study("demo", ":norm.kind=layer"), None).values()))
    changed = with_lr(run, 2 * run.optimizer.lr)
    assert changed.optimizer.lr == 2 * run.optimizer.lr
    assert changed.optimizer.adamw_lr == pytest.approx(2 * run.optimizer.adamw_lr)


def test_runs_that_may_end_early_are_not_compared() -> None:
    """Whoever ends first would have had fewer tokens and a schedule that is cut short."""
    words = study("modern", ":norm.kind=layer", common=("early_stop.patience=3",))
    one = study("modern", ":early_stop.patience=3")
    for refused in (words, one):
        with pytest.raises(UserError) as caught:
            arms(refused, 2e5)
        assert caught.value.lines == (
            "early_stop.patience: found 3; a study compares runs of equal length, so none of them may end early: leave "
            "it out, or lower --budget",
        )
