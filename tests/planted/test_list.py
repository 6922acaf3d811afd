"""The list of planted faults fits the package as it is; `make mutants` plants them."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.planted.faults import ROOT, Fault, read_faults

FAULTS = read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    fault.planted((ROOT / fault.file).read_text("utf-8"))
    assert fault.why.endswith(".")
    for test in fault.tests:
        file, *names = test.split("::")
        assert test.startswith(fault.tests_of_room), "tests of its own room must notice it"
        inside: ast.AST = ast.parse((ROOT / file).read_text("utf-8"))
        for name in names:
            found = {getattr(node, "name", ""): node for node in ast.iter_child_nodes(inside)}
            assert name.partition("[")[0] in found, f"{file} has no such test"
            inside = found[name.partition("[")[0]]


def test_there_are_faults_in_every_room() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (contract,) = config["tool"]["importlinter"]["contracts"]
    rooms = {room for room in contract["layers"] if not room.startswith("(")}
    assert {fault.room for fault in FAULTS} == rooms
    assert len(FAULTS) >= 100


def test_no_two_are_alike() -> None:
    names = Counter(fault.name for fault in FAULTS)
    changes = Counter((fault.file, fault.old, fault.new) for fault in FAULTS)
    assert set(names.values()) == set(changes.values()) == {1}


@pytest.mark.release
@pytest.mark.slow
def test_a_fault_is_planted_and_noticed(tmp_path: Path) -> None:
    only = ("--only", "lists are joined", "--jobs", "1", "--record", str(tmp_path / "noticed.json"))
    found = subprocess.run(
        [sys.executable, "-m", "tests.planted.run", *only],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "1 of 1 noticed: 100.0%" in found.stdout
    (test,) = json.loads((tmp_path / "noticed.json").read_text("utf-8"))["lists are joined"]
    assert test.startswith("tests/spec/test_merge.py::")
