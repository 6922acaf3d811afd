"""Keys of format 1 are read, hashed as they were, and named by their new names to who types them."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from archwright.cli import main
from archwright.lab.command_line import study_of
from archwright.spec.choice import Choice, Spec
from archwright.spec.fingerprint import differing
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load, load_run, read_study
from archwright.spec.renamings import RENAMINGS, RenamedWarning, renamed
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec

MODEL = """
[norm]
kind = "rms"
multiply = "narrow"

[residual]
unnormed = "attention"

[attention]
clip = 3.0
qk_norm = { kind = "rms", multiply = "narrow" }
qk_norm_over = "each_head"
qk_norm_place = "after"
length_scale = { kind = "log" }

[feedforward]
kind = "experts"
weigh = "input"
routed_scale = 2.0
renormalise = false
renormalise_power = 2.0

[head]
multiplier = 0.5
divisor = 2.0

[init]
branch_ends = "zero"

[layer_kinds.local]
attention = { clip = 2.0 }

[sources]
"attention.clip" = "a paper"
"""
STUDY = """
rates = "fixed"
grid = 5
ratio = 2.0
margin = 0.02
together = "stacked"

[variants]
clipped = ["attention.clip=8"]
"""


def subclasses(cls: type) -> set[type]:
    return {cls, *(s for sub in cls.__subclasses__() for s in subclasses(sub))}


def test_every_renaming_is_of_a_class_and_a_key_that_there_are() -> None:
    classes = {cls.__name__: cls for cls in subclasses(Spec)}
    for name, renamings in RENAMINGS.items():
        below = [
            c for c in subclasses(classes[name]) if not issubclass(c, Choice) or not c.is_axis()
        ]
        for old, new, values in renamings:
            fields = [c.model_fields[new] for c in below if new in c.model_fields]
            assert fields, (name, new)
            assert old == new or all(old not in c.model_fields for c in below), (name, old)
            taken = {f.default for f in fields} | {
                a for f in fields for a in _literals(f.annotation)
            }
            for value in values.values():
                kinds = [f.annotation.choices() for f in fields if isinstance(value, dict)]
                assert value["kind"] in kinds[0] if kinds else value in taken, (name, new)


def _literals(annotation: Any) -> tuple[Any, ...]:
    inner = getattr(annotation, "__args__", ())
    return (
        (True, False) if annotation is bool else (*inner, *(v for i in inner for v in _literals(i)))
    )


def test_a_model_of_format_1(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(MODEL)
    with pytest.warns(RenamedWarning) as caught:
        model = load(tmp_path / "old.toml")
    assert model.attention.qkv_clip == 3  # type: ignore[attr-defined]
    assert model.layers_by_kind["local"].attention.qkv_clip == 2  # type: ignore[attr-defined]
    assert model.head.logit_scale == 0.5
    assert model.sources == {"attention.qkv_clip": "a paper"}
    assert [str(w.message) for w in caught][:2] == [
        "norm.multiply=narrow is now norm.scale_in=input_dtype",
        "residual.unnormed is now residual.skip_norm",
    ]
    assert "layer_kinds.local.attention.clip is now layer_kinds.local.attention.qkv_clip" in [
        str(w.message) for w in caught
    ]
    # What hashes are made of has the names of format 1 still.
    found = differing(model)
    assert found["norm"] == {"kind": "rms", "multiply": "narrow"}
    assert found["attention"]["qk_norm_over"] == "each_head"
    assert found["attention"]["length_scale"] == {"kind": "log"}
    assert found["feedforward"]["renormalise"] is False
    assert found["head"] == {"multiplier": 0.5, "divisor": 2.0}
    assert model.hash() == "b0d294ab02a17507"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("clip=none", "max_grad_norm=none"),
        ("accumulate=2", "grad_accum_steps=2"),
        ("tensorboard=true", "loggers=tensorboard"),
        ("data.documents=mask", "data.packing=document_mask"),
        ("schedule.final=0.5", "schedule.final_lr_fraction=0.5"),
        ("machine.float32_products=highest", "machine.float32_matmul_precision=highest"),
        ("model.attention.clip=4", "model.attention.qkv_clip=4"),
        ("model.residual.kind=normed", "model.residual.kind=norm_residual"),
        ("model.layer_kinds.a.attention.clip=4", "model.layer_kinds.a.attention.qkv_clip=4"),
        ("model.attention={clip = 4}", "model.attention.qkv_clip=4"),
    ],
)
def test_old_and_new_assignments_are_one(old: str, new: str) -> None:
    run = load_run("modern")
    with pytest.warns(RenamedWarning, match=" is now "):
        found = run.override(old)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found == run.override(new)
    assert found.hash() == run.override(new).hash()


def test_both_names_contradict_each_other() -> None:
    with pytest.warns(RenamedWarning), pytest.raises(Exception, match="given twice"):
        RunSpec().override("clip=1", "max_grad_norm=2")


def test_a_choice_of_a_kind_keeps_a_key_that_another_kind_had() -> None:
    wsd = renamed(RunSpec, {"schedule": {"kind": "wsd", "decay": 0.5}})
    assert wsd == {"schedule": {"kind": "wsd", "decay_fraction": 0.5}}
    assert renamed(RunSpec, {"schedule": {"kind": "cosine", "decay": 0.5}}) == {
        "schedule": {"kind": "cosine", "decay": 0.5}
    }
    assert renamed(ModelSpec, {"residual": {"multiplier": 2.0}}) == {
        "residual": {"multiplier": 2.0}
    }


@pytest.mark.parametrize(
    "wrong", [{"attention": 3}, {"norm": {"kind": ["rms"]}}, {"layer_kinds": 1}]
)
def test_what_is_no_table_is_left_to_be_refused(wrong: dict[str, Any]) -> None:
    assert renamed(ModelSpec, wrong) == wrong


def test_a_study_of_format_1(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(STUDY)
    with pytest.warns(RenamedWarning):
        study = read_study(tmp_path / "old.toml")
    assert not study.tune_lr
    assert (study.lr_grid_size, study.lr_ratio, study.equivalence_margin) == (5, 2.0, 0.02)
    assert study.parallelism == "ensemble"
    with pytest.warns(RenamedWarning, match="rates=fixed is now tune_lr=false"):
        assert not study_of(StudySpec(variants={"b": ("dim=8",)}), rates="fixed").tune_lr


@pytest.mark.filterwarnings("default")  # and printed, as for a user
def test_a_command_names_an_old_key_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every variant of a study reads what they have in common."""
    (tmp_path / "text.txt").write_text("some words\n")
    words = ["compare", "modern", ":norm.kind=layer", ":dim=3", "clip=1", "--dry-run"]
    assert main([*words, f"data.text={tmp_path / 'text.txt'}"]) == 2
    assert capsys.readouterr().err.count("warning: clip is now max_grad_norm\n") == 1


@pytest.mark.filterwarnings("default")  # and printed, as for a user
def test_old_options_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "modern", ":dim=3", "--rates", "never", "--dry-run"]) == 2
    assert "tune_lr" in capsys.readouterr().err
