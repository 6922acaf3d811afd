"""What is changed before it is read: folders of a tiny model and a short text, made once by the package itself."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from archwright.cli import main
from tests.tiny import MACHINE, SHAPE, tiny_words, write_text

PRESETS = Path(__file__).parents[2] / "archwright" / "presets"
ROOT_MARK = b"@ROOT@"
"""Stands in a seed's files for the folder that they were made in."""

STUDY_WORDS = (
    *("modern", ":norm.kind=layer", "data.text=text.txt", *SHAPE),
    *(word for word in MACHINE if "threads" not in word),
    *("machine.loss=whole", "evaluate.max_tokens=256", "evaluate.every=10", "optimizer.lr=0.01"),
)
STUDY_OPTIONS: dict[str, Any] = {
    "budget": "20steps",
    "seeds": 2,
    "evaluation_tokens": 1024,
    "parallelism": "processes",
}
RUN_WORDS = (
    *("budget=6steps", "evaluate.every=3", "checkpoint.every=2", "probes.every=2"),
    *("evaluate.max_tokens=100", "evaluate.final_max_tokens=200"),
)


@dataclass(frozen=True)
class Seed:
    """A valid folder."""

    name: str
    files: Mapping[str, bytes]
    kinds: Mapping[str, str]
    """The files that may be changed, and of what kind each is."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else its reader must know."""


def of_folder(
    name: str, folder: Path, kinds: Mapping[str, str], *, moves: bool = True, **more: Any
) -> Seed:
    """Return a folder as a seed; `kinds` names by patterns the files that may be changed. Where the folder
    does not move, its files go on naming it, as something knows their hashes."""
    root = str(folder).encode() if moves else ROOT_MARK
    files = {
        str(path.relative_to(folder)): path.read_bytes().replace(root, ROOT_MARK)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }
    found = {p: kind for p in files for pattern, kind in kinds.items() if Path(p).match(pattern)}
    assert found, f"{name}: none of {list(kinds)} in {list(files)}"
    return Seed(name, files, found, more)


def apart(do: Callable[[], object]) -> None:
    """Do something in a process of its own: one that has gone backward cannot be forked."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                do()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "a seed could not be made"


def verb(*words: str) -> None:
    """Run a verb, which must succeed."""
    assert main(list(words)) == 0, words


def in_memory() -> Path | None:
    """Return a folder that is no disk, where there is one: folders are made and removed by thousands."""
    found = Path("/dev/shm")
    return found if "TMPDIR" not in os.environ and os.access(found, os.W_OK) else None


class Workshop:
    """Makes the seeds of the cases with these numbers in a folder, each kind when it is first asked for."""

    def __init__(self, folder: Path, numbers: Sequence[int]) -> None:
        self.folder, self.numbers = folder, numbers

    @cache  # noqa: B019 -- there is one workshop
    def run(self) -> Path:
        """Return a folder with a text, a cache, and the run `run` that has checkpoints of two steps."""
        return self._made("run", self._make_run)

    @cache  # noqa: B019
    def run_of_two(self) -> Path:
        """Return the same with its newest checkpoint in parts, as two processes write it."""

        def make() -> None:
            self._copy_run()
            _write_in_parts(Path("run"), 6, 2)

        return self._made("two", make)

    @cache  # noqa: B019
    def cut_run(self) -> Path:
        """Return the same with the run as it was at step 4, to be resumed."""

        def make() -> None:
            self._copy_run()
            for name in ("model.safetensors", "samples.txt", "report.html"):
                Path("run", name).unlink()
            shutil.rmtree("run/checkpoints/step-6")

        return self._made("cut", make)

    @cache  # noqa: B019
    def foreign(self) -> Path:
        """Return a folder with checkpoints in the layout of Hugging Face: whole, narrow, tied, in shards."""
        return self._made("foreign", _make_foreign)

    @cache  # noqa: B019
    def study(self) -> Path:
        """Return a folder with a text, a cache, and the planned study `study`."""
        return self._made("study", _make_study)

    def made(self, name: str, make: Callable[[], object]) -> Path:
        """Return a folder in which `make` was called, with a cache of its own."""
        return self._made(name, make)

    def _made(self, name: str, make: Callable[[], object]) -> Path:
        place = self.folder / name
        if not place.exists():
            place.mkdir(parents=True)

            def do() -> None:
                os.chdir(place)
                os.environ["ARCHWRIGHT_CACHE"] = str(place / "cache")
                make()

            apart(do)
        return place

    def _copy_run(self) -> None:
        """Copy the run into this folder, whose stores are its own."""
        shutil.copytree(self.run(), ".", dirs_exist_ok=True)
        for file in Path("run").glob("*.json*"):
            there = file.read_bytes().replace(str(self.run()).encode(), bytes(Path.cwd()))
            file.write_bytes(there)

    def _make_run(self) -> None:
        write_text(Path("text.txt"), 120)
        verb(*tiny_words("text.txt", *RUN_WORDS), "--quiet", "--out", "run")


def _write_in_parts(run: Path, step: int, size: int) -> None:
    """Write a checkpoint of a run again, as so many processes do that have a stretch of each tensor."""
    import torch

    from archwright import checkpoint
    from archwright.checkpoint.optimizers import read_optimizer
    from archwright.runs import RunFolder
    from archwright.scale.layout import Block
    from archwright.training.data import reload_data
    from archwright.training.resolve import resolved_session

    def block(tensor: torch.Tensor, rank: int) -> Block:
        shape = (*tensor.shape,)
        if not shape or shape[0] % size:
            return Block(shape, (0,) * len(shape), shape, size, rank)
        rows = shape[0] // size
        return Block(shape, (rank * rows, *(0 for _ in shape[1:])), (rows, *shape[1:]))

    def own(tensor: torch.Tensor, rank: int) -> torch.Tensor:
        found = block(tensor, rank)
        return tensor[found.offsets[0] :][: found.sizes[0]] if found.copies == 1 else tensor

    folder = RunFolder(str(run))
    session = resolved_session(folder, reload_data(folder.spec, folder))[0]
    checkpoints = folder.checkpoints_folder
    session.restore(checkpoints / f"step-{step}")
    state = dict(vars(session.standing)) | {"precision": session.precision.state()}
    names, metadata = checkpoint.steps.names_of(session.model)
    tensors = session.model.state_dict()
    shutil.rmtree(checkpoints / f"step-{step}")
    draft, seals = checkpoint.steps.begin(checkpoints, step, 2), {}
    for rank in range(size):
        optimizers, blocks = {}, {}
        for name, optimizer in session.optimizers.items():
            found = read_optimizer(optimizer, session.model)
            kept = found["state_dict"]["state"].items()
            moments = {i: {k: own(v, rank) for k, v in values.items()} for i, values in kept}
            optimizers[name] = found | {"state_dict": found["state_dict"] | {"state": moments}}
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            blocks[name] = [block(p, rank) for p in parameters]
        snapshot = checkpoint.steps.take_part(
            step,
            (rank, size),
            tensors={
                name: (own(tensors[name], rank), block(tensors[name], rank)) for name in names
            },
            optimizers=optimizers,
            blocks=blocks,
            metadata=metadata,
            state=state if rank == 0 else None,
        )
        seals |= checkpoint.steps.write_part(draft, snapshot)
    checkpoint.steps.finish(checkpoints, step, seals, 2)


def _make_foreign() -> None:
    import torch

    import archwright as aw
    from archwright import hf

    spec = aw.load("modern").override(
        *("dim=32", "num_layers=2", "vocab_size=64", "attention.num_heads=2"),
        *("attention.num_kv_heads=1", "feedforward.hidden_dim=48", "context_length=32"),
    )
    hf.save(aw.build(spec), "whole")
    hf.save(aw.build(spec).bfloat16(), "narrow")
    hf.save(aw.build(spec.override("head.tied=true")), "tied")
    hf.save(aw.build(spec), "shards", max_shard_bytes=10_000)
    assert torch.get_num_threads() == 1


def _make_study() -> None:
    """Plan a study with workers that time nothing."""
    from archwright.lab import compare
    from archwright.lab.design import plan
    from archwright.lab.design.command_line import Command, study_of
    from archwright.lab.design.planner import Planner

    write_text(Path("text.txt"), 400)
    study = study_of(*STUDY_WORDS, **STUDY_OPTIONS)
    with compare.open_study(Path("study"), study) as folder:
        planner = Planner(study, folder, _Workers(), Command(study, folder.path))  # type: ignore[arg-type]
        plan.save(planner.plan(), folder)


class _Workers:
    """Stands for workers: answers each job at once."""

    def __init__(self) -> None:
        self.size, self.waiting = 2, list[Any]()

    running = property(lambda self: set(self.waiting))
    free = property(lambda self: self.size - len(self.waiting))

    def prepare(self, machine: object) -> None:
        """Let the plan decide how many go at once."""

    def give(self, name: Any, job: Mapping[str, Any]) -> None:
        self.waiting.append(name)

    def wait(self, timeout: float) -> Iterable[Any]:
        from archwright.lab.running.workers import Done

        answer = {"setup": 0.1, "step": 0.01, "token": 0.0001}
        return [Done(self.waiting.pop(0), "done", answer)] if self.waiting else ()


def families() -> dict[str, dict[str, Any]]:
    """Return the tiny configuration of each family, and kinds of it."""
    file = Path(__file__).parents[1] / "hf" / "tiny_configs.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8"))
    return found


def make_family(name: str) -> None:
    """Write a family's tiny folder, with the weights that its library would give it."""
    from tests.hf.library import build, randomise, save

    save(randomise(build(name)), Path())
