"""Files with keys of format 1 are read as they were, and keep their hashes.

`format_1/` was written by the code of format 1: NAME.toml as a user writes it, NAME_resolved.toml with every value
spelled out. None of it is ever changed.
"""

from pathlib import Path

import pytest

import archwright
from archwright.spec.read import diff, load_study
from archwright.spec.study_spec import StudySpec

HERE = Path(__file__).parent / "format_1"
ASSIGNMENTS = (
    *("model.attention.clip=8.0", "model.norm.multiply=narrow", "model.init.branch_ends=zero"),
    *("model.residual.unnormed=attention", "model.head.divisor=4.0", "data.documents=mask"),
    *("clip=0.5", "accumulate=2", "schedule.final=0.2", "machine.float32_products=highest"),
)

pytestmark = pytest.mark.filterwarnings("ignore:.* is now ")


def test_a_model() -> None:
    model = archwright.load(HERE / "model.toml")
    assert model.hash() == "3614e930b87b4bb7"
    assert model.resolved().hash() == "e8b5920f7d95b59b"
    # The file has no table of axes that came later: resolved once more, it has.
    assert model.resolved() == archwright.load(HERE / "model_resolved.toml").resolved()


@pytest.mark.parametrize(
    ("name", "run", "model"),
    [
        ("run", "580f573c9e012379", "3614e930b87b4bb7"),
        ("small_run", "81d811b99db54ba0", "7f98ae83c793d0ec"),
    ],
)
def test_a_run(name: str, run: str, model: str) -> None:
    found = archwright.load_run(HERE / f"{name}.toml")
    assert (found.hash(), found.model.hash()) == (run, model)
    assert found == archwright.load_run(HERE / f"{name}_resolved.toml")


def test_a_study() -> None:
    found = load_study(HERE / "study.toml")
    assert found == load_study(HERE / "study_resolved.toml")
    changed = {line.partition(":")[0] for line in diff(StudySpec(), found)}
    assert len(changed) == 11, "as many keys as the file gives"


def test_keys_that_are_typed() -> None:
    typed = archwright.load_run("modern").override(*ASSIGNMENTS)
    assert (typed.hash(), typed.model.hash()) == ("21538e7aeac52554", "5be234b3958098f7")
