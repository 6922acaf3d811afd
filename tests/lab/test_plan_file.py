"""plan.json: whatever happens to it, one line says so and what to do; nothing else than what was planned is run."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.cli.main import main
from archwright.lab.compare import compare, plan
from archwright.lab.design import plan_file
from archwright.lab.design.plan_file import FORMAT
from archwright.spec.errors import UserError
from tests.lab.small import OPTIONS, words, working_in

pytestmark = pytest.mark.slow

ASKED = OPTIONS | {"tune_lr": False, "budget": "2steps"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a text and a finished study."""
    with working_in(tmp_path_factory.mktemp("plans")) as folder:
        again("study")
        yield folder


@pytest.fixture
def study(place: Path) -> Path:
    """A copy of the study."""
    shutil.rmtree(place / "copy", ignore_errors=True)
    return Path(shutil.copytree(place / "study", place / "copy"))


def again(out: str):
    return compare(*words("text.txt", ":norm.kind=layer"), quiet=True, out=out, **ASKED)


def complaint(study: Path) -> str:
    """What is said by compare and, in the same words, by --dry-run."""
    said = []
    for act in (lambda: again("copy"), lambda: estimated("copy")):
        with pytest.raises(UserError) as caught:
            act()
        (line,) = caught.value.lines
        said.append(line)
    assert said[0] == said[1]
    return said[0]


def estimated(out: str):
    return plan(*words("text.txt", ":norm.kind=layer"), out=out, **ASKED)


def test_a_dry_run_refuses_the_folders_that_a_study_does(place: Path) -> None:
    (place / "junk").mkdir(exist_ok=True)
    (place / "junk" / "notes.md").write_text("mine", "utf-8")
    for out, message in (("junk", "is not a study and not empty"), ("text.txt", "is a file")):
        with pytest.raises(UserError, match=message):
            estimated(out)


def test_a_plan_is_json_for_programs_and_says_that_so_few_steps_tell_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*words("text.txt", ":norm.kind=layer"), "--budget", "2steps", "--no-tune-lr"]
    assert main(["compare", *asked, "--dry-run", "--json", "--out", "fresh"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [v["name"] for v in found["variants"]] == ["modern", "norm.kind=layer"]
    assert (found["steps"], found["study"]["tune_lr"]) == (2, False)
    assert found["num_runs"] >= 2 * found["study"]["seeds"]
    assert main(["compare", *asked, "--dry-run", "--out", "fresh"]) == 0
    assert "  2 steps a run are too few to answer: give 500 or more" in capsys.readouterr().out


def test_batch_sizes_are_compared_on_equal_tokens(place: Path) -> None:
    given = words("text.txt", ":batch_size=16")  # the baseline has 4
    asked = plan(*given, out="new", **ASKED | {"budget": "64steps"})
    runs = [arm.run for arm in asked.arms.values()]
    assert [(run.batch_size, run.machine.num_steps) for run in runs] == [(4, 64), (16, 16)]
    assert [asked.steps_of(name, 0.25) for name in asked.arms] == [16, 4]
    assert len({run.machine.num_steps * run.tokens_per_step for run in runs}) == 1


def test_a_plan_is_read_as_it_was_written(study: Path) -> None:
    record = plan_file.read(study)
    assert record.steps == 2
    assert [arm.name for arm in record.arms] == ["modern", "norm.kind=layer"]
    assert set(record.files) == {
        "study.toml", "environment.json", "variants/0-modern.toml", "variants/1-norm.kind-layer.toml",
    }  # fmt: skip
    assert again("copy").complete


def test_a_plan_of_another_kind_is_refused(study: Path) -> None:
    """Its checksum is right, its values are not."""
    file = study / "plan.json"
    values = json.loads(file.read_text()) | {"workers": "two"}
    file.write_text(json.dumps(values | {"checksum": plan_file.checksum(values)}))
    assert complaint(study).startswith("copy/plan.json: cut short or changed")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"steps": 2', '"steps": 3'),
        lambda text: text.replace('"steps": 2', '"steps": "2"'),
        lambda text: text.replace('"steps"', '"stepz"'),
        lambda text: text.replace('"workers": ', '"workers": 1'),
        lambda text: text.replace('"arms"', f'"format": {FORMAT}, "arms"').replace(
            "norm.kind", "norm.eps"
        ),
    ],
)
def test_a_changed_plan_is_refused(study: Path, change) -> None:
    file = study / "plan.json"
    text = file.read_text()
    file.write_text(change(text))
    assert file.read_text() != text
    line = complaint(study)
    assert line.startswith("copy/plan.json: cut short or changed since it was written")
    assert "give --out a new folder" in line


def test_without_it_nothing_there_is_touched_and_another_folder_goes_on(study: Path) -> None:
    (study / "plan.json").unlink()
    before = {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="is not a study and not empty"):
        again("copy")
    assert {path: path.read_bytes() for path in study.rglob("*") if path.is_file()} == before
    assert again("another").complete


def test_another_format_is_named(study: Path) -> None:
    file = study / "plan.json"
    file.write_text(file.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    assert f"found format 99, and this version reads {FORMAT}" in complaint(study)
    # Its study may have options that are gone.
    text = (study / "study.toml").read_text()
    (study / "study.toml").write_text('procedure = "sweep"\n' + text)
    assert f"found format 99, and this version reads {FORMAT}" in complaint(study)


@pytest.mark.parametrize(
    "name", ["variants/0-modern.toml", "variants/1-norm.kind-layer.toml", "environment.json"]
)
def test_files_beside_it_are_as_they_were(study: Path, name: str) -> None:
    file = study / name
    file.write_text(file.read_text() + "\n")
    assert complaint(study).startswith(f"copy/{name}: changed or gone since the study was planned")
    file.unlink()
    assert complaint(study).startswith(f"copy/{name}: changed or gone since the study was planned")


def test_a_study_that_was_edited_is_refused(study: Path) -> None:
    file = study / "study.toml"
    text = file.read_text()
    file.write_text(text.replace("\nseeds = 2", "\nseeds = 3"))
    assert "copy holds another study (seeds: 3 -> 2)" in complaint(study)
    file.write_text(text + "\n# a note\n")
    assert complaint(study).startswith("copy/study.toml: changed or gone")
    file.write_text(text[: len(text) // 2])
    assert "study.toml" in complaint(study)


def test_no_damage_ends_in_a_traceback(study: Path) -> None:
    """Bytes at random places, after which the checksum is that of the values if there are any."""
    file, dice = study / "plan.json", random.Random(0)
    text = file.read_text()
    lines = []
    for _ in range(300):
        at = dice.randrange(len(text))
        piece = dice.choice(["", "-", '"', "{", "1e999", "null", "[]", "é", "\x00"])
        damaged = text[:at] + piece + text[at + dice.randrange(12) :]
        try:
            values = json.loads(damaged)
            damaged = json.dumps(values | {"checksum": plan_file.checksum(values)})
        except ValueError:
            pass
        file.write_text(damaged, encoding="utf-8")
        try:
            assert plan_file.read(study).steps >= 1
        except UserError as error:
            lines.append(error.lines)
    assert len(lines) > 200
    assert all(len(said) == 1 for said in lines)
