"""Python files that lie beside a user's text are no part of the program, whatever they are called."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from archwright.cli.main import VERBS
from archwright.lab.running.local import PACKAGE, START
from tests.tiny import MACHINE, ROOT, SHAPE, archwright, command, surroundings, write_text

pytestmark = pytest.mark.slow

NAMES = (
    *("filelock", "jinja2", "numpy", "platformdirs", "plotly", "psutil", "pydantic", "rich"),
    *("safetensors", "scipy", "tiktoken", "tokenizers", "tomli_w", "torch", "transformers"),
    *("importlib", "json", "pathlib", "tomllib", "typing"),
)
"""What the program needs, and what that needs."""

HOSTILE = """
open("IMPORTED", "a").write(__name__)
raise ImportError("not this one")
"""

SMALL = f"{' '.join((*SHAPE, *MACHINE))} evaluate.max_tokens=512"
COMMANDS = {
    "train": f"modern data.text=text.txt {SMALL} budget=2steps --quiet",
    "compare": f"modern :norm.kind=layer data.text=text.txt {SMALL} --budget 2steps --seeds 2 "
    "--no-tune-lr --size given --evaluation-tokens 1024 --quiet",
    "prepare": f"modern data.text=text.txt {SMALL} --processes 2",
    "cache": "",
    "generate": "runs/modern --max-new-tokens 2",
    "eval": "runs/modern --text short.txt",
    "export": "runs/modern exported",
    "import": "exported --out runs/imported",
    "verify": "exported",
    "plan": "modern --devices 1",
    "profile": "modern dim=32 num_layers=1 context_length=32 --seconds 0.1 --precision fp32 --kernel sdpa",
    "report": "runs/modern",
    "list": "runs",
    "show": "modern",
    "explain": "rope",
    "completion": "bash",
    "diff": "modern textbook",
    "schema": "model",
    "new": "norm my_norm.py",
    "check": "mine.toml my_norm.py",
}
"""A command of each verb that goes all the way."""

INSTALLED = """
import json, sys
from archwright.cli import main
sys.exit(any([main(words) for words in json.loads(sys.argv[1])]))
"""


@pytest.fixture
def hostile(place: Path) -> Path:
    """A folder with texts, a model, and files that must not be imported."""
    write_text(place / "text.txt", 4000)
    write_text(place / "short.txt", 4)
    (place / "mine.toml").write_text('base = "modern"\n')
    for name in NAMES:
        (place / f"{name}.py").write_text(HOSTILE)
    return place


def test_the_installed_command_and_its_workers_import_nothing_from_it(
    hostile: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert COMMANDS.keys() == VERBS.keys()
    script = tmp_path_factory.mktemp("bin") / "archwright"
    script.write_text(INSTALLED)
    words = json.dumps([[verb, *rest.split()] for verb, rest in COMMANDS.items()])
    done = subprocess.run(
        [sys.executable, str(script), words],
        cwd=hostile,
        env=surroundings(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (hostile / "IMPORTED").exists(), done.stderr
    assert done.returncode == 0, done.stderr


def test_python_m_imports_nothing_from_it(hostile: Path) -> None:
    assert archwright("train", *COMMANDS["train"].split(), cwd=hostile).returncode == 0
    running = {
        verb: subprocess.Popen(
            command(verb, "--help"), cwd=hostile, env=surroundings(), stdout=subprocess.DEVNULL
        )
        for verb in VERBS
    }
    codes = {verb: process.wait(60) for verb, process in running.items()}
    assert codes == dict.fromkeys(VERBS, 0)
    assert not (hostile / "IMPORTED").exists()


def test_a_folder_of_pythonpath_stays(place: Path) -> None:
    """Who asks for the current folder has it."""
    (place / "pydantic.py").write_text(HOSTILE)
    paths = (str(place), surroundings()["PYTHONPATH"])
    archwright("show", "modern", cwd=place, env={"PYTHONPATH": os.pathsep.join(paths)})
    assert (place / "IMPORTED").read_text() == "pydantic"


def test_a_checkout_that_is_not_installed_works(place: Path) -> None:
    """Where the package is found in the current folder alone, its own modules still are, also by workers."""
    alone = surroundings() | {"PYTHONPATH": str(Path(pydantic.__file__).parents[1])}
    for words, folder in (
        (["-m", "archwright", "list", "runs"], ROOT),
        (["-P", "-c", START, PACKAGE], place),
    ):
        done = subprocess.run(
            [sys.executable, "-S", *words],
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=alone,
            check=False,
        )
        assert done.returncode in (0, -signal.SIGTERM)
