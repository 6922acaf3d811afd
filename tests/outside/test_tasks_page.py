"""The task that docs/tasks.md shows trains, is asked for by its name as the text, and is listed."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from archwright.cli import main
from archwright.data.inputs import IGNORE
from archwright.data.tasks import TASKS
from archwright.plugins import load_parts_file
from archwright.runs import RunFolder
from archwright.spec.tasks import Task
from tests.tiny import MACHINE, ROOT, SHAPE

PAGE = (ROOT / "docs/tasks.md").read_text("utf-8")
((NAME, CONTENT, LINE),) = re.findall(
    r"```python\n# (my_\w+\.py)\n(.*?)```\n\n```sh\narchwright (.*?)\n```", PAGE, re.S
)


def test_the_page_has_every_task_and_all_options() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|.*?\| ([`\w, ]+) \| [^|]+ \|$", PAGE, re.M)
    tasks = {kind: cls for kind, cls in Task.choices().items() if cls.__module__ == Task.__module__}
    assert {kind for kind, _ in rows} == tasks.keys() - {"none"}
    for kind, options in rows:
        assert set(re.findall(r"\w+", options)) == tasks[kind].model_fields.keys() - {"kind"}


@pytest.mark.usefixtures("visitors")
def test_the_task_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).write_text(CONTENT, "utf-8")
    tiny = [word for word in (*SHAPE, *MACHINE) if "tokenizer" not in word]
    few = ("budget=2steps", "evaluate.final_max_tokens=64", "--quiet")
    assert main([*shlex.split(LINE), *tiny, *few]) == 0
    folder = RunFolder("runs/modern")
    assert set(folder.parts) == {NAME}
    assert folder.spec.data.task.kind == "reversal"
    last = [record for record in folder.metrics() if record["kind"] == "eval"][-1]
    assert last["num_answers"] == 2 * 15
    capsys.readouterr()
    assert main(["list", "choices", "reversal", "--parts", NAME]) == 0
    assert "task: reversal\n" in capsys.readouterr().out
    load_parts_file(Path(NAME))
    tokens, answers = TASKS.make(folder.spec.data.task, 31).sample(np.random.default_rng(0))
    assert (answers[:16] == IGNORE).all()
    assert (answers[16:] == tokens[14::-1]).all()
