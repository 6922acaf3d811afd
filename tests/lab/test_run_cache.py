"""A run's name holds all that decides its numbers, and nothing else."""

import math
from pathlib import Path

import pytest

from archwright.lab.results import Unit
from archwright.lab.running import run_cache
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import PartsFile
from archwright.training.data import Material, prepare_data
from tests.tiny import tiny_run, write_text


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("pool")
    text = write_text(folder / "text.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        return prepare_data(tiny_run(text), RunFolder(folder))


CHANGES = (
    "seed=1",
    "optimizer.lr=0.5",
    "model.norm.kind=layer",
    "machine.kernel=eager",
    "machine.precision=bf16",
    "machine.threads=2",
    "machine.num_steps=7",
    "evaluate.final_max_tokens=9",
    "schedule.kind=linear",
)


def test_every_change_of_what_decides_gives_another_name(material: Material) -> None:
    run = tiny_run("text.txt")
    keys = [run_cache.key(run, material)]
    keys += [run_cache.key(run.override(change), material) for change in CHANGES]
    assert len(set(keys)) == len(keys)


def test_what_a_run_is_called_does_not_matter(material: Material) -> None:
    run = tiny_run("text.txt")
    assert run_cache.key(run.override("name=other", "model.name=x"), material) == run_cache.key(
        run, material
    )


def test_other_text_gives_another_name(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    run = tiny_run(write_text(tmp_path / "text.txt", 401))
    assert run_cache.key(run, prepare_data(run, RunFolder(tmp_path / "r"))) != run_cache.key(
        run, material
    )


def test_names_stay_when_the_package_learns_more(
    material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New axes and options, left at their defaults, let runs that are there be used."""
    monkeypatch.setattr("archwright.lab.running.run_cache.NUMERICS", 0)
    monkeypatch.setattr("archwright.lab.running.run_cache.torch.__version__", "0")
    run = tiny_run("text.txt", "data.packing=document_mask", "model.attention.qkv_clip=8.0")
    assert run_cache.key(run, material) == "5e0cb00c2c28950d"


@pytest.mark.parametrize(
    "version",
    [
        "archwright.lab.running.run_cache.NUMERICS",
        "archwright.lab.running.run_cache.torch.__version__",
    ],
)
def test_another_arithmetic_gives_another_name(
    version: str, material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("text.txt")
    before = run_cache.key(run, material)
    monkeypatch.setattr(version, 0)
    assert run_cache.key(run, material) != before


def test_another_content_of_a_parts_file_gives_another_name(material: Material) -> None:
    run = tiny_run("text.txt")
    files = [(PartsFile(name="mine.py", sha256=letter * 64),) for letter in "ab"]
    runs = [run, *(run.model_copy(update={"parts": parts}) for parts in files)]
    assert len({run_cache.key(run, material) for run in runs}) == 3


def test_what_has_not_ended_has_no_outcome(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_run("text.txt"))
    assert run_cache.outcome(folder) == ""
    for name, outcome in (
        ("started", ""),
        ("stopped", ""),
        (run_cache.DIVERGED, run_cache.DIVERGED),
        ("resumed", ""),
        ("finished", "finished"),
    ):
        folder.append({"kind": "event", "step": 0, "name": name})
        assert run_cache.outcome(folder) == outcome


HALVES = {
    **{"tuning": 2.0, "judged_tokens": [25], "judged_nats": [50.0]},
    **{"tuning_bits_per_byte": 1.4, "judged_bytes": [50]},
}


@pytest.mark.parametrize("unit", ["nats per token", "bits per byte"])
def test_a_point_has_the_training_loss_of_the_steps_since_the_one_before(
    tmp_path: Path, unit: Unit
) -> None:
    """Losses 6, 5, 4 up to step 3 have a mean of 5, the next two, 3 and 2, of 2.5."""
    spec = tiny_run("text.txt")
    folder = RunFolder.create(
        tmp_path / "run", spec.model_copy(update={"model": spec.model.resolved(300)})
    )
    end = {"nats_per_token": 2.0, "perplexity": 7.4, "num_tokens": 50, "num_bytes": 100}
    end["bits_per_byte"] = factor = 2.0 * 50 / 100 / math.log(2)
    for step, loss in enumerate((6.0, 5.0, 4.0, 3.0, 2.0), 1):
        at = {"step": step, "tokens": 8 * step, "seconds": float(step)}
        folder.append({"kind": "train", **at, "loss": loss})
        if step in (3, 5):
            folder.append({"kind": "eval", **at, **end, **HALVES})
    folder.append({"kind": "event", "step": 5, "name": "finished"})
    curve = run_cache.read(folder, "modern", 0, 1e-3, "", unit).curve
    scale = 1.0 if unit == "nats per token" else factor / 2.0
    assert [point.step for point in curve] == [3, 5]
    assert [point.train_loss for point in curve] == pytest.approx([5.0 * scale, 2.5 * scale])


def test_the_only_point_of_a_run_has_the_training_loss_of_its_last_tenth(tmp_path: Path) -> None:
    """Losses 20, 19, ... 1: the last two have a mean of 1.5."""
    spec = tiny_run("text.txt")
    update = {
        "model": spec.model.resolved(300),
        "machine": spec.machine.model_copy(update={"num_steps": 20}),
    }
    folder = RunFolder.create(tmp_path / "run", spec.model_copy(update=update))
    for step in range(1, 21):
        at = {"step": step, "tokens": 8 * step, "seconds": float(step)}
        folder.append({"kind": "train", **at, "loss": 21.0 - step})
    end = {
        "nats_per_token": 2.0,
        "perplexity": 7.4,
        "bits_per_byte": 1.4,
        "num_tokens": 50,
        "num_bytes": 100,
    }
    folder.append({"kind": "eval", **at, **end, **HALVES})
    folder.append({"kind": "event", "step": 20, "name": "finished"})
    [point] = run_cache.read(folder, "modern", 0, 1e-3, "").curve
    assert (point.step, point.train_loss) == (20, 1.5)


def test_a_run_whose_final_evaluation_is_damaged_is_refused(tmp_path: Path) -> None:
    spec = tiny_run("text.txt")
    model = spec.model.resolved(300)
    folder = RunFolder.create(tmp_path / "run", spec.model_copy(update={"model": model}))
    end = {"nats_per_token": 2.0, "perplexity": 7.4, "num_tokens": 50, "num_bytes": 100}
    folder.append({"kind": "eval", "step": 1, "tokens": 8, "seconds": 1.0, **end})
    folder.append({"kind": "event", "step": 1, "name": "finished"})
    with pytest.raises(UserError, match="the final evaluation is missing"):
        run_cache.read(folder, "modern", 0, 1e-3, "")
