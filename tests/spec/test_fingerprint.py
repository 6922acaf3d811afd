from typing import ClassVar, Literal

import pytest
from hypothesis import given, settings

from archwright.catalogue import summaries
from archwright.hf import exporting
from archwright.spec.fingerprint import differing, fingerprint
from archwright.spec.machine import MachineSpec
from archwright.spec.mixers import Recurrence
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.read import diff, load, load_run
from archwright.spec.run_spec import RunSpec
from tests.strategies import model_specs

WINDOWED = (
    "layer_kinds.local.attention.mask.kind=window",
    "layer_kinds.local.attention.mask.size=4096",
    'layers.cycle=["local", "default"]',
)

GOLDEN = {"default": "01e7b720ff566d53", "windowed": "201efd16ff9940a9", "run": "7458d98ec1d8b353"}


def test_hashes_are_what_they_were() -> None:
    """If these change, no study finds the runs that it has trained."""
    assert ModelSpec().hash() == GOLDEN["default"]
    assert ModelSpec(dim=64).override(*WINDOWED, "norm.kind=layer").hash() == GOLDEN["windowed"]
    assert RunSpec().override("optimizer.kind=muon", "data.text=a.txt").hash() == GOLDEN["run"]


def test_names_and_sources_are_no_part_of_it() -> None:
    spec = load("modern")
    renamed = spec.override("name=other", "source=x", "sources.dim=y")
    assert renamed.hash() == spec.hash()
    run = load_run("demo")
    assert run.override("name=other", "model.name=other", "model.source=x").hash() == run.hash()


def test_options_that_change_no_result_are_no_difference(visitors: None) -> None:
    class Chunked(Recurrence):
        kind: Literal["chunked"] = "chunked"
        not_results: ClassVar[frozenset[str]] = frozenset({"chunk_size"})
        chunk_size: int = 64
        decay: float = 0.5

    base = load("modern").override(
        "recurrence.kind=chunked", "layer_kinds.far.recurrence.decay=0.6"
    )
    words = ["recurrence.chunk_size=16", "layer_kinds.far.recurrence.chunk_size=8"]
    other = base.override(*words)
    assert other.recurrence != base.recurrence
    assert other.hash() == base.hash()
    assert diff(base, other) == []
    assert summaries.differences(base, other) == []
    assert [*exporting.differences(base, other)] == []
    changed = other.override("recurrence.decay=0.7", "layer_kinds.far.recurrence.decay=0.8")
    assert changed.hash() != base.hash()
    assert [line.partition(":")[0] for line in diff(base, changed)] == [
        "recurrence.decay",
        "layer_kinds.far.recurrence.decay",
    ]
    assert len([*exporting.differences(base, changed)]) == 1  # the layers in use


def test_what_the_machine_decides_is_no_part_of_it() -> None:
    run = load_run("demo")
    decided = run.model_copy(update={"machine": MachineSpec(precision="bf16", num_steps=7)})
    assert decided.hash() == run.hash()
    assert run.override("loggers=csv").hash() == run.hash()
    assert run.override("seed=1").hash() != run.hash()


def test_files_of_choices_are_part_of_it() -> None:
    run = RunSpec()
    hashes = {run.hash()} | {
        RunSpec.model_validate({"parts": [{"name": "a.py", "sha256": sha}]}).hash() for sha in "ab"
    }
    assert len(hashes) == 3


@pytest.mark.slow
@settings(max_examples=60)
@given(model_specs(), model_specs())
def test_different_models_have_different_hashes(one: ModelSpec, other: ModelSpec) -> None:
    assert (one.hash() == other.hash()) == (differing(one) == differing(other))
    assert ModelSpec.model_validate(one.model_dump()).hash() == one.hash()


@pytest.mark.parametrize(
    "words", [["dim=64"], ["norm.kind=layer"], ["norm.eps=1e-6"], ["layer_kinds.a.norm.kind=none"]]
)
def test_any_value_changes_it(words: list[str]) -> None:
    assert ModelSpec().override(*words).hash() != ModelSpec().hash()


def test_a_whole_number_is_the_same_as_its_float() -> None:
    words = "norm.eps={}", "layer_kinds.a.norm.eps={}"
    one, other = (ModelSpec().override(*(w.format(n) for w in words)) for n in ("1", "1.0"))
    assert one.hash() == other.hash()


@pytest.mark.usefixtures("visitors")
def test_an_option_with_a_default_changes_no_hash() -> None:
    """A norm before and after it got an option, alone and within a resolved layer kind."""

    def hashes() -> list[str]:
        spec = ModelSpec().override(
            "norm.kind=growing",
            "norm.gain=2.0",
            "layer_kinds.a.norm.gain=3.0",
            'layers.cycle=["a"]',
        )
        return [spec.hash(), spec.resolved().hash(), fingerprint(spec.norm)]

    def early() -> None:
        class Growing(Norm):
            kind: Literal["growing"] = "growing"
            gain: float = 1.0

    def late() -> None:
        class Growing(Norm):
            kind: Literal["growing"] = "growing"
            gain: float = 1.0
            offset: float = 0.0

    late.__qualname__ = early.__qualname__
    early()
    before = hashes()
    del Norm.kinds["growing"]
    late()
    assert hashes() == before
    assert (
        ModelSpec().override("norm.kind=growing", "norm.offset=1.0").norm.model_dump()["offset"]
        == 1
    )
