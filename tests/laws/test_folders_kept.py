"""A law: whatever lies in the folder that a verb is given, every file is as it was afterwards, or the verb goes on
with that very run."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import archwright as aw
from archwright import hf
from archwright.checkpoint.started import FILE, StartRecord
from archwright.cli import main
from archwright.spec.read import to_toml
from archwright.spec.study_spec import StudySpec
from tests.tiny import SHAPE, tiny_run, tiny_words, write_text

TRIES = 160

NAMES = (
    *("spec.toml", "requested.toml", "environment.json", "metrics.jsonl", "model.safetensors"),
    *(
        "tokenizer",
        "samples.txt",
        "report.html",
        "checkpoints",
        "probes.jsonl",
        "lock",
        "lock.json",
    ),
    *("study.toml", "plan.json", "log.txt", "timing", "variants", "config.json", FILE),
    *("notes.txt", ".hidden", ".requested.toml.99999999.0123abcd.tmp", ".out.tmp", "sub"),
)


class World:
    """A run, a checkpoint of the ecosystem and a study, and a folder `out` that has anything."""

    def __init__(self, place: Path) -> None:
        self.place, self.out = place, place / "out"
        text = write_text(place / "text.txt", 60)
        few = ("budget=1steps", "evaluate.max_tokens=50", "evaluate.final_max_tokens=50")
        run = tiny_run(text, *few, "model.head.tied=false")
        self.words = tiny_words(text, *few, "model.head.tied=false")
        aw.train(run, out=place / "run", quiet=True)
        hf.export_run(place / "run", place / "hf")
        text.unlink()  # so that no verb has anything to train on
        (place / "study.toml").write_text(to_toml(StudySpec(baseline=("modern",), variants={})))
        (place / "outside").mkdir()
        (place / "outside" / "file").write_text("outside")

    def verbs(self) -> dict[str, list[str]]:
        out = ["--out", str(self.out)]
        run, shape = str(self.place / "run"), " ".join(SHAPE).split()
        return {
            "train": [*self.words, *out],
            "train other": [*self.words, "seed=1", *out],
            "train with its tokenizer": [
                *("train", "modern", "data.text=none.txt", "data.tokenizer.kind=file"),
                *(f"data.tokenizer.path={self.out}/tokenizer", *out),
            ],
            "resume": ["train", "--resume", str(self.out)],
            "import": ["import", str(self.place / "hf"), *out],
            "import nothing": ["import", str(self.place / "none"), *out],
            "export": ["export", run, str(self.out)],
            "export nothing": ["export", str(self.place / "none"), str(self.out)],
            "compare": [
                "compare",
                "modern",
                ":norm.kind=layer",
                "data.text=none.txt",
                *shape,
                *out,
            ],
            "compare its file": [
                "compare",
                str(self.out / "study.toml"),
                "data.text=none.txt",
                *out,
            ],
            "compare dry": [
                "compare",
                "modern",
                ":norm.kind=layer",
                "--dry-run",
                "data.text=x",
                *out,
            ],
            "report": ["report", str(self.out)],
            "eval": ["eval", str(self.out), "--text", str(self.place / "study.toml")],
            "generate": ["generate", str(self.out), "--max-new-tokens", "1"],
            "check": ["check", str(self.out / "spec.toml")],
            "verify": ["verify", str(self.out)],
        }

    def litter(self, dice: random.Random) -> set[str]:
        """Fill the folder; return the names that a start of ours wrote down."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        ours: set[str] = set()
        if dice.random() < 0.3:
            record = StartRecord(self.out)
            record.begin("train")
            ours = set(dice.sample(["lock", "requested.toml", "spec.toml", "tokenizer"], 2))
            record.add(*ours)
            # A file that is being written belongs to its name.
            ours |= {
                FILE,
                *([".requested.toml.99999999.0123abcd.tmp"] if "requested.toml" in ours else []),
            }
        for name in dice.sample(NAMES, dice.choice([0, 1, 1, 2, 3, 5])):
            if not os.path.lexists(self.out / name):
                dice.choice([self._copy, self._copy, self._foreign, self._link])(name)
        return ours

    def _copy(self, name: str) -> None:
        """Take a file of ours of another folder."""
        found = [f / name for f in (self.place / "run", self.place / "hf", self.place)]
        source = next((path for path in found if path.exists()), None)
        if source is None:
            self._foreign(name)
        elif source.is_dir():
            shutil.copytree(source, self.out / name)
        else:
            shutil.copy(source, self.out / name)

    def _foreign(self, name: str) -> None:
        if "." in name:
            (self.out / name).write_text("mine")
        else:
            (self.out / name).mkdir()
            (self.out / name / "tokenizer.json").write_text("mine")

    def _link(self, name: str) -> None:
        target = "outside/file" if "." in name else "outside"
        (self.out / name).symlink_to(self.place / target)


def seen(folder: Path) -> dict[str, Any]:
    """What is in a folder: contents of files, targets of links, and that folders are there."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = path.readlink()
        else:
            found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(place / "cache"))
        patch.chdir(place)
        patch.setattr("archwright.training.finalize.SAMPLE_TOKENS", 1)
        yield World(place)


def goes_on_with(verb: str, before: dict[str, Any]) -> set[str]:
    """The names that a verb may change, as the folder is the run it speaks of."""
    runs = {"resume": {"lock", "lock.json"}, "report": {"report.html"}}
    return runs.get(verb, set()) if "spec.toml" in before else set()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_file_that_was_there_is_as_it_was(
    part: int, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(part)
    verbs = world.verbs()
    for _ in range(TRIES // 4):
        ours = world.litter(dice)
        verb = dice.choice(list(verbs))
        before, outside = seen(world.out), seen(world.place / "outside")
        code = main(verbs[verb])
        after, (_, err) = seen(world.out), capsys.readouterr()
        told = (verb, code, sorted(before), err)
        assert "Traceback" not in err, told
        may_change = ours | goes_on_with(verb, before)
        for name, content in before.items():
            if Path(name).parts[0] not in may_change:
                assert name in after, (name, *told)
                assert after[name] == content, (name, *told)
        assert seen(world.place / "outside") == outside, told
        if code and verb != "resume":  # which may leave its lock in a run
            assert {Path(n).parts[0] for n in after} <= {Path(n).parts[0] for n in before}, told


@pytest.mark.parametrize("verb", ["train", "import nothing", "export nothing", "compare"])
def test_a_mistake_makes_no_folder(
    verb: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        w.replace(str(world.out), str(world.place / "deep" / "new")) for w in world.verbs()[verb]
    ]
    assert main(words) == 2
    assert not (world.place / "deep").exists()
    (world.place / "empty").mkdir()
    words = [w.replace(str(world.out), str(world.place / "empty")) for w in world.verbs()[verb]]
    assert main(words) == 2
    assert seen(world.place / "empty") == {}
    (world.place / "empty").rmdir()


def test_verbs_that_succeed_leave_what_is_beside_them(world: World) -> None:
    """A user's hidden folder of the name that drafts once had is beside the new one."""
    (world.place / ".new.tmp").mkdir()
    (world.place / ".new.tmp" / "thesis.tex").write_text("mine")
    assert main(["export", str(world.place / "run"), str(world.place / "new")]) == 0
    assert main(["import", str(world.place / "hf"), "--out", str(world.place / "imported")]) == 0
    assert (world.place / ".new.tmp" / "thesis.tex").read_text() == "mine"
    assert [path.name for path in world.place.glob(".*")] == [".new.tmp"]
    made = (world.place / "new", world.place / "imported")
    assert [path.name for folder in made for path in folder.rglob(".*")] == []
