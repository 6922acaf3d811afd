"""Inputs of the Python interface: paths, dicts and keyword arguments, as the command line takes words."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import archwright as aw
from archwright.cli import main
from archwright.lab.design.command_line import study_of
from archwright.spec.norms import RMSNorm
from archwright.spec.study_spec import OPTIONS
from tests.tiny import MACHINE, SHAPE, write_text


def test_keys_may_be_texts_dicts_and_keyword_arguments() -> None:
    modern = aw.load_run("modern")
    changed = modern.override("seed=1", "dim=64", "data.text=['a.txt', 'b.txt']", "norm.eps=0.1")
    assert changed == modern.override(
        {"seed": 1, "data": {"text": (Path("a.txt"), "b.txt")}}, dim=64, norm=RMSNorm(eps=0.1)
    )
    assert aw.load("modern").override({"model.dim": 64}, num_layers=2).num_layers == 2
    assert study_of("modern", ":norm.kind=layer", {"dim": 64}).common == ("model.dim=64",)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"dmi": 64}, 'dmi: unknown key. Did you mean "dim"?'),
        (
            {"model.dim": None},
            "found {'model.dim': None}; expected \"key=value\", or a dict or keyword",
        ),
        (3, 'found 3; expected "key=value", or a dict or keyword arguments of numbers, texts'),
    ],
)
def test_what_no_override_is(given: Any, line: str) -> None:
    with pytest.raises(aw.UserError) as refusal:
        aw.train("modern", given)
    assert str(refusal.value).startswith(line)


def test_a_run_is_given_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    text = write_text(tmp_path / "text.txt", 100)
    values = {"data.text": text, "evaluate.max_tokens": 50, "evaluate.final_max_tokens": 50}
    run = aw.train(
        "modern", *SHAPE, *MACHINE, values, budget="1steps", out=tmp_path / "run", quiet=True
    )
    folder = run.folder.path
    assert aw.generate(str(folder), "x", max_new_tokens=3) == aw.generate(
        run, "x", max_new_tokens=3
    )
    assert aw.evaluate_text(folder, str(text)) == aw.evaluate_text(run, str(text))
    assert aw.write_report(folder, str(tmp_path / "page.html")).is_file()


def test_only_public_names_are_listed() -> None:
    assert {*dir(aw)} == {*aw.__all__, "__version__", "hf"}


def test_a_model_is_given_by_its_name(tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    small.write_text('base = "modern"\ndim = 32\nnum_layers = 1\nvocab_size = 64\n', "utf-8")
    assert aw.build(small).spec == aw.build(aw.load(small)).spec
    assert aw.load_run(aw.load(small)).model == aw.load_run(str(small)).model


def test_a_plan_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    plan = aw.plan("modern", "num_layers=2", dim=64, devices=1)
    assert main(["plan", "modern", "num_layers=2", "dim=64", "--devices", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(plan.record())) | {"name": ""} == record | {"name": ""}
    assert plan.parameters == record["parameters"]
    assert repr(plan).startswith("Plan(modern: 0.")


def test_comparisons_have_a_parameter_for_each_option_of_a_study() -> None:
    parameters = inspect.signature(aw.compare).parameters
    assert {*OPTIONS} <= {*parameters}
    assert not {"waited", "options"} & {*parameters}
    assert all(p.annotation is not p.empty for p in parameters.values())


def test_the_errors_of_a_run_are_public() -> None:
    assert issubclass(aw.DivergedError, RuntimeError)
    assert issubclass(aw.Stopped, Exception)
