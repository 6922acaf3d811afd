"""A choice from outside the package is built, trained, listed and tested like any other."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.model import build
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import Norm

FILE = Path(__file__).with_name("centered_norm.py")
ROOT = FILE.parents[2]


@pytest.fixture
def small(visitors: None) -> ModelSpec:
    runpy.run_path(str(FILE))
    spec = ModelSpec(dim=32, num_layers=2, vocab_size=64, context_length=16)
    return spec.override("norm.kind=centered", "norm.gain=0.5")


def test_without_its_file_it_is_unknown() -> None:
    with pytest.raises(UserError, match=r'norm\.kind: found "centered"; expected one of'):
        ModelSpec().override("norm.kind=centered")


def test_it_is_part_of_the_spec(small: ModelSpec) -> None:
    assert small.norm.model_dump() == {"kind": "centered", "gain": 0.5}
    assert small.hash() != small.override("norm.gain=0.6").hash()
    assert "centered" in repr(build(small, device="meta"))
    assert Norm.kinds["centered"].__name__ == "CenteredNorm"


@pytest.mark.slow
def test_the_tests_of_the_tables_run_over_it() -> None:
    command = "-m pytest -p tests.outside.centered_norm tests/parts/test_tables.py -k norm-centered"
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 9
