"""What CONTRIBUTING.md shows of choices from outside works as it stands there."""

import inspect
import re
import shlex
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.model import build
from archwright.plugins import REGISTRIES, load_parts_file
from archwright.runs import RunFolder
from archwright.spec.optimizers import Optimizer
from archwright.spec.read import load
from tests.laws.laws import LAWS, Case
from tests.tiny import ROOT, tiny_words, write_text

HERE = Path(__file__).parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
EXAMPLES = re.findall(
    r"```python\n# (my_\w+\.py)\n(.*?)```\n\n```sh\narchwright (.*?)\n```", TEXT, re.S
)
FILES = {name: content for name, content, _ in EXAMPLES}


def test_there_are_examples() -> None:
    assert FILES.keys() == {"my_norms.py", "my_optimizers.py", "my_mixers.py"}


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize(("name", "content", "line"), EXAMPLES, ids=FILES)
def test_an_example_trains_and_is_listed(
    name: str,
    content: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content, "utf-8")
    write_text(tmp_path / "text.txt", 100)
    few = ("budget=3steps", "evaluate.final_max_tokens=50")
    tiny = tiny_words("text.txt", *few)[2:]
    assert main([*shlex.split(line), *tiny, "--quiet"]) == 0
    folder = RunFolder("runs/modern")
    assert set(folder.parts) == {name}
    kind, *_ = re.findall(r"kind=(\w+)", line)
    assert f'kind = "{kind}"' in folder.spec_file.read_text("utf-8")
    capsys.readouterr()
    assert main(["list", "choices", kind, "--parts", name]) == 0
    assert f": {kind}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("visitors")
def test_the_norm_may_stand_for_each_head(tmp_path: Path) -> None:
    (tmp_path / "my_norms.py").write_text(FILES["my_norms.py"], "utf-8")
    load_parts_file(tmp_path / "my_norms.py")
    small = load("modern").override("dim=32", "num_layers=1", "attention.num_heads=2")
    centered = build(small.override("norm.kind=centered"))
    assert centered.num_parameters() == build(small).num_parameters()
    words = ("norm.kind=centered", "attention.qk_norm.kind=centered")
    heads = build(small.override(*words, "attention.qk_norm_over=per_head"))
    assert heads.layers[0].attention.query_norm.weight.shape == (2, 16)


@pytest.mark.usefixtures("visitors")
def test_the_optimizer_has_a_learning_rate_to_tune(tmp_path: Path) -> None:
    (tmp_path / "my_optimizers.py").write_text(FILES["my_optimizers.py"], "utf-8")
    load_parts_file(tmp_path / "my_optimizers.py")
    ball = Optimizer.kinds["heavy_ball"]()
    assert isinstance(ball, Optimizer)
    assert ball.with_peak_lr(0.5).peak_lr == 0.5


def test_files_outside_have_as_many_lines_as_the_table_says() -> None:
    rows = re.findall(r"^\| .* \| `(\w+\.py)` \| (\d+) \|$", TEXT, re.M)
    found = {p.name for p in HERE.glob("*.py") if not p.name.startswith(("test_", "__"))}
    assert {name for name, _ in rows} == found
    for name, lines in rows:
        assert len((HERE / name).read_text("utf-8").splitlines()) == int(lines) < 150


@pytest.mark.slow
@pytest.mark.usefixtures("visitors")
def test_the_mixer_is_lawful(tmp_path: Path) -> None:
    (tmp_path / "my_mixers.py").write_text(FILES["my_mixers.py"], "utf-8")
    load_parts_file(tmp_path / "my_mixers.py")
    small = load("modern").override("dim=32", "num_layers=2", "vocab_size=64", "context_length=24")
    for law in LAWS:
        law(Case(small.override("recurrence.kind=retention"), 1))


def test_the_table_has_every_axis() -> None:
    rows = []
    for name, registry in REGISTRIES.items():
        base = registry.base
        flags = sorted(base.__class_vars__ - {"axis", "kinds", "not_results", "spelling", "table"})
        called = re.sub(r"\([^()]*(?:\([^()]*\))?[^()]*\)", r"`\g<0>`", registry.arguments)
        rows.append(
            f"| {base.axis} | `{base.__name__}`, `{_file(base, 'spec')}` | {', '.join(f'`{f}`' for f in flags)} | "
            f"`{name}`, `{_home(name)}` | {called} |"
        )
    table = re.findall(r"^\| \w+ \| `\w+`, .*\|$", TEXT, re.M)
    assert table == rows


def _file(choice: type, room: str) -> str:
    return Path(inspect.getfile(choice)).relative_to(ROOT / "archwright" / room).as_posix()


def _home(name: str) -> str:
    """Return the file that makes a registry."""
    rooms = (ROOT / "archwright" / room for room in ("data", "parts", "optim"))
    files = (file for room in rooms for file in room.rglob("*.py"))
    (file,) = [f for f in files if f"\n{name} = Registry(" in f.read_text("utf-8")]
    return file.relative_to(ROOT / "archwright").as_posix()
