import os
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.machine.waiting import wait_briefly
from tests.tiny import surroundings

VARIABLE = "GOMP_SPINCOUNT"


def test_a_setting_of_the_users_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "7")
    wait_briefly()
    assert os.environ[VARIABLE] == "7"


def test_the_command_line_sets_it_before_torch_is_imported(tmp_path: Path) -> None:
    program = f"""
import builtins, os, sys
plain = builtins.__import__
def watched(name, *rest):
    if name == "torch":
        print(os.environ.get("{VARIABLE}", "unset"), flush=True)
        os._exit(0)
    return plain(name, *rest)
builtins.__import__ = watched
from archwright.cli import main
main(["generate", "nowhere"])
main(["train", "demo", "--dry-run"])
"""
    environment = {k: v for k, v in surroundings().items() if k != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.stdout.strip().isdigit(), done.stderr
