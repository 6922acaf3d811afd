"""Specs at a prompt and in a notebook: short, and with what differs from the defaults."""

import re
from html import unescape

import pytest

from archwright.spec.choice import Spec
from archwright.spec.read import load, load_run, load_study
from archwright.spec.run_spec import RunSpec
from archwright.spec.shown import changed


def test_a_spec_is_a_line() -> None:
    run = load_run("modern").override("dim=128", "num_layers=2", "data.text=a.txt", "budget=9s")
    assert repr(run.model) == str(run.model)
    assert repr(run.model) == (
        "ModelSpec(modern: dim 128, 2 layers, context 256, norm rms, residual pre, position rope, attention softmax, "
        "feedforward swiglu, init glorot)"
    )
    assert repr(run) == (
        "RunSpec(modern: modern of dim 128 and 2 layers on a.txt, batches of 16 x 256 tokens, adamw lr 0.003, cosine, "
        "budget 9s)"
    )
    assert repr(load_study("norm-kind")).startswith(
        "StudySpec(norm-kind: modern against LayerNorm,"
    )


def test_what_differs_is_what_a_file_would_say() -> None:
    run = RunSpec().override("optimizer.kind=muon", "seed=3", "data.text=a.txt")
    found = changed(run)
    assert found["seed"] == "3"
    assert found["optimizer.kind"] == '"muon"'
    assert found["data.text"] == '["a.txt"]'
    assert not {"batch_size", "data.field", "budget"} & found.keys()
    assert RunSpec().override(*(f"{key}={value}" for key, value in found.items())) == run
    assert changed(RunSpec()) == {}


@pytest.mark.parametrize(
    "spec", [load("gemma-2-27b"), load_run("demo"), load_study("norm-kind")], ids=lambda s: s.name
)
def test_a_notebook_shows_a_table_of_that(spec: Spec) -> None:
    html = spec._repr_html_()  # type: ignore[attr-defined]
    assert repr(spec) in unescape(html)
    cells = [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", html)]
    assert cells == [cell for row in changed(spec).items() for cell in row]
