"""Reading specs answers at once, so it must not wait for torch."""

import subprocess
import sys

import pytest

SCRIPT = """
import pkgutil, sys
import archwright.classic.spec
import archwright.spec
for module in pkgutil.iter_modules(archwright.spec.__path__):
    __import__(f"archwright.spec.{module.name}")
from archwright.spec.read import load, load_run
from archwright.spec.rules import suspicions
from archwright.spec.schema import file_schema
from archwright.spec.run_spec import RunSpec
suspicions(load("modern").override("dim=256").resolved())
file_schema(RunSpec), load_run("demo").hash()
print(*sorted({"torch", "numpy", "archwright.parts"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_specs_import_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
