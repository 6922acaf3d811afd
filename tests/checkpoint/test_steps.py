import json
import os
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from archwright import checkpoint
from archwright.checkpoint import DamagedError
from archwright.files import atomic_write
from archwright.spec.errors import UserError

pytestmark = pytest.mark.slow


class Tied(nn.Module):
    """Everything that a state can hold: ties, buffers, 0-dim and bfloat16 tensors, extra state."""

    def __init__(self, dim: int = 8, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, dim)
        self.inner = nn.Linear(dim, dim, dtype=torch.bfloat16)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(dim, 16, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("part", self.inner.bias.detach()[:3])  # a view of another's memory
        self.register_buffer("empty", torch.empty(0, 3))
        self.notes: list[object] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += tokens.numel()
        x = self.drop(self.embedding(tokens))
        return self.head(self.inner(x.bfloat16()).float()) * self.scale

    def get_extra_state(self) -> object:
        return {"notes": self.notes, "table": torch.arange(3)}

    def set_extra_state(self, state: object) -> None:
        assert isinstance(state, dict)
        assert torch.equal(state["table"], torch.arange(3))
        self.notes = state["notes"]


def make(seed: int = 0, **options: object) -> tuple[Tied, dict[str, torch.optim.Optimizer]]:
    torch.manual_seed(seed)
    model = Tied(**options)
    matrices, rest = [model.inner.weight], [model.embedding.weight, model.scale, model.inner.bias]
    return model, {
        "muon": torch.optim.Muon(matrices, lr=0.02, momentum=0.9),
        "adamw": torch.optim.AdamW(
            [{"params": rest[:1], "weight_decay": 0.0}, {"params": rest[1:], "lr": 1e-2}],
            betas=(0.8, 0.99),
            fused=True,
        ),
    }


def train(
    model: nn.Module, optimizers: dict[str, torch.optim.Optimizer], steps: int
) -> list[float]:
    losses = []
    for _ in range(steps):
        tokens = torch.randint(16, (4, 6))
        noise = np.random.normal() + random.gauss(0, 1)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        (loss * (2 + 0.01 * noise)).backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def save(folder: Path, step: int, made: tuple, keep: int = 3, **state: object) -> Path:
    model, optimizers = made
    return checkpoint.save(folder, step, model=model, optimizers=optimizers, state=state, keep=keep)


def same(a: object, b: object) -> bool:
    """Equality of nested states, bit for bit, types included."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        return a.dtype == b.dtype and a.shape == b.shape and a.device == b.device and a.equal(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    made = make()
    train(*made, 3)
    made[0].notes = [1, ("a", float("inf"))]
    path = save(tmp_path, 3, made, cursor=17, losses=(1.5, float("nan")))
    onward = train(*made, 4)

    again = make(seed=1)
    np.random.seed(5)
    random.seed(5)
    state = checkpoint.load(path, model=again[0], optimizers=again[1])
    assert state["cursor"] == 17
    assert state["losses"][0] == 1.5
    assert np.isnan(state["losses"][1])
    assert train(*again, 4) == onward
    assert same(dict(made[0].state_dict()), dict(again[0].state_dict()))
    assert again[0].notes == [1, ("a", float("inf"))]
    for name, optimizer in made[1].items():
        assert same(optimizer.state_dict(), again[1][name].state_dict())


def test_optimizer_state_is_exact_even_where_torch_would_cast_it(tmp_path: Path) -> None:
    model = nn.Linear(4, 4, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.randn(parameter.shape)
    before = optimizer.state_dict()
    path = save(tmp_path, 1, (model, {"sgd": optimizer}))
    fresh = nn.Linear(4, 4, dtype=torch.bfloat16)
    other = torch.optim.SGD(fresh.parameters(), lr=torch.tensor(9.0), momentum=0.1)
    checkpoint.load(path, model=fresh, optimizers={"sgd": other})
    assert same(before, other.state_dict())


def test_moments_lie_in_memory_as_their_parameters_do(tmp_path: Path) -> None:
    """Torch's fused kernels go through both by address, whatever their strides."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 5)
        model.weight = nn.Parameter(torch.randn(3, 5).T)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for i, parameter in enumerate(model.parameters(), start=1):
            parameter.grad = (parameter.detach() * i).sin()
        optimizer.step()

    model, optimizer = made()
    step(model, optimizer)
    path = save(tmp_path, 1, (model, {"adamw": optimizer}))
    again = made()
    checkpoint.load(path, model=again[0], optimizers={"adamw": again[1]})
    moment = again[1].state[again[0].weight]["exp_avg"]
    assert moment.stride() == again[0].weight.stride() == (1, 5)
    step(model, optimizer)
    step(*again)
    assert again[0].weight.equal(model.weight)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adamax]
)
def test_other_optimizers_that_count_steps_resume(
    optimizer: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 5)
        return model, optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]

    model, first = made()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    first.step()
    path = save(tmp_path, 1, (model, {"outside": first}))
    again, second = made()
    checkpoint.load(path, model=again, optimizers={"outside": second})
    assert same(first.state_dict(), second.state_dict())


def test_resumed_optimizers_do_not_live_in_the_file(tmp_path: Path) -> None:
    made = make()
    train(*made, 1)
    path = save(tmp_path, 1, made)
    again = make()
    checkpoint.load(path, model=again[0], optimizers=again[1])
    before = (path / "optimizers.safetensors").read_bytes()
    with (path / "optimizers.safetensors").open("r+b") as file:
        file.write(b"\0" * len(before))
    assert same(made[1]["muon"].state_dict(), again[1]["muon"].state_dict())


def test_tied_tensors_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    made = make()
    path = save(tmp_path, 1, made)
    untied = save(tmp_path / "untied", 1, make(tied=False))
    size = [(p / "model.safetensors").stat().st_size for p in (path, untied)]
    assert size[1] - size[0] >= 16 * 8 * 4 * 0.8  # the head, less the note on the tie
    again = make(seed=1)
    checkpoint.load(path, model=again[0], optimizers=again[1])
    assert again[0].head.weight is again[0].embedding.weight
    assert again[0].head.weight.equal(made[0].head.weight)
    with pytest.raises(UserError, match=r"head\.weight: tied to embedding\.weight in the checkp"):
        checkpoint.load(path, model=(other := make(tied=False))[0], optimizers=other[1])
    with pytest.raises(UserError, match=r"head\.weight: not tied in the checkpoint, tied to emb"):
        checkpoint.load(untied, model=again[0], optimizers=again[1])


def test_every_misfit_is_listed_and_nothing_is_changed(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(3, 3, bias=False)})
    path = save(tmp_path, 1, (model, {"x": torch.optim.SGD(model["a"].parameters())}))
    other = nn.ModuleDict(
        {"a": nn.Linear(2, 2, dtype=torch.float64), "b": nn.Linear(4, 3), "c": nn.Linear(1, 1)}
    )
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    generator = torch.get_rng_state()
    optimizers = {
        "x": torch.optim.AdamW(other["a"].parameters()),
        "y": torch.optim.SGD(other["a"].parameters()),
    }
    with pytest.raises(UserError) as caught:
        checkpoint.load(path, model=other, optimizers=optimizers)
    assert sorted(line.removeprefix(f"{path}: ") for line in caught.value.lines) == [
        "a.bias: torch.float32 in the checkpoint, torch.float64 in the model.",
        "a.weight: torch.float32 in the checkpoint, torch.float64 in the model.",
        "b.bias: missing from the checkpoint.",
        "b.weight: shape [3, 3] in the checkpoint, [3, 4] in the model.",
        "c.bias: missing from the checkpoint.",
        "c.weight: missing from the checkpoint.",
        "optimizer x: SGD in the checkpoint, AdamW given.",
        "optimizer y: missing from the checkpoint.",
    ]
    assert same(before, dict(other.state_dict()))
    assert generator.equal(torch.get_rng_state())


def test_parameters_in_another_order_or_group_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    weight, bias = model.weight, model.bias
    sgd = torch.optim.SGD
    path = save(tmp_path, 1, (model, {"o": sgd([weight, bias])}))
    for groups, said in (
        ([bias, weight], "another order"),
        ([weight], "bias"),
        ([{"params": [weight]}, {"params": [bias]}], "1 parameter groups in the checkpoint, 2"),
    ):
        with pytest.raises(UserError, match=said):
            checkpoint.load(path, model=model, optimizers={"o": sgd(groups)})
    with pytest.raises(UserError, match="optimizer o: in the checkpoint, but not given"):
        checkpoint.load(path, model=model, optimizers={})


def test_a_model_without_memory_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1, (nn.Linear(2, 2), {}))
    with pytest.raises(UserError, match="meta device"):
        checkpoint.load(path, model=nn.Linear(2, 2, device="meta"), optimizers={})


def test_the_newest_are_kept_and_a_step_may_be_saved_again(tmp_path: Path) -> None:
    made = make()
    for step in (5, 9, 10, 100):
        save(tmp_path, step, made, keep=2)
    assert names(tmp_path) == ["step-10", "step-100"]
    path = save(tmp_path, 100, made, keep=2, again=True)
    assert names(tmp_path) == ["step-10", "step-100"]
    assert checkpoint.load(path, model=made[0], optimizers=made[1]) == {"again": True}
    assert list(checkpoint.complete(tmp_path)) == [10, 100]
    with pytest.raises(UserError, match="keep = 0"):
        save(tmp_path, 101, made, keep=0)


def test_a_later_step_is_neither_overtaken_nor_lost(tmp_path: Path) -> None:
    made = make()
    save(tmp_path, 20, made)
    with pytest.raises(UserError, match="step 20, later than step 3"):
        save(tmp_path, 3, made)
    assert names(tmp_path) == ["step-20"]
    checkpoint.remove_after(tmp_path, 3)
    save(tmp_path, 3, made)
    assert names(tmp_path) == ["step-3"]


def test_nothing_there(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") is None
    assert checkpoint.complete(tmp_path / "none") == {}
    checkpoint.remove_stale(tmp_path / "none")
    checkpoint.remove_after(tmp_path / "none", 0)
    with pytest.raises(UserError, match=r"COMPLETE\.json is missing"):
        checkpoint.load(tmp_path / "none", model=nn.Linear(1, 1), optimizers={})


FILES = ("model.safetensors", "optimizers.safetensors", "state.safetensors", "state.json")


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found_before_anything_is_loaded(tmp_path: Path, name: str) -> None:
    made = make()
    train(*made, 1)
    save(tmp_path, 1, made)
    file = save(tmp_path, 2, made) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    before = {
        key: value.clone()
        for key, value in made[0].state_dict().items()
        if value is not None and isinstance(value, torch.Tensor)
    }
    with pytest.raises(DamagedError, match=name):
        checkpoint.load(file.parent, model=made[0], optimizers=made[1])
    assert all(before[key].equal(made[0].state_dict()[key]) for key in before)
    assert checkpoint.latest(tmp_path) == file.parent  # sizes say nothing
    with pytest.warns(UserWarning, match=name):
        assert (
            checkpoint.use_latest(tmp_path, partial(checkpoint.verify, hashes=True))
            == tmp_path / "step-1"
        )


@pytest.mark.parametrize("name", [*FILES, "COMPLETE.json"])
def test_a_short_or_missing_file_is_passed_over(tmp_path: Path, name: str) -> None:
    made = make()
    save(tmp_path, 1, made)
    file = save(tmp_path, 2, made) / name
    os.truncate(file, file.stat().st_size - 5)
    with pytest.warns(UserWarning, match=f"step-2/{name}"):
        assert checkpoint.latest(tmp_path) == tmp_path / "step-1"
    file.unlink()
    with pytest.warns(UserWarning, match=f"step-2/{name} is missing"):
        assert checkpoint.latest(tmp_path) == tmp_path / "step-1"
    # The damaged one does not count among those to keep, nor does it bar the way.
    save(tmp_path, 2, made, keep=2)
    assert list(checkpoint.complete(tmp_path)) == [1, 2]


def test_a_damaged_checkpoint_is_not_kept_in_place_of_a_good_one(tmp_path: Path) -> None:
    made = make()
    save(tmp_path, 1, made)
    (save(tmp_path, 2, made) / "state.json").unlink()
    save(tmp_path, 3, made, keep=2)
    assert names(tmp_path) == ["step-1", "step-3"]


@pytest.mark.parametrize("found", [1, 99])
def test_a_checkpoint_of_another_format_is_neither_passed_over_nor_removed(
    tmp_path: Path, found: int
) -> None:
    seal = save(tmp_path, 1, make()) / "COMPLETE.json"
    seal.write_text(json.dumps(json.loads(seal.read_text()) | {"format": found}))
    with pytest.raises(UserError, match=f"COMPLETE.json: found format {found}; expected"):
        checkpoint.latest(tmp_path)
    with pytest.raises(UserError, match=f"format {found}"):
        save(tmp_path, 2, make(), keep=1)
    assert seal.exists()


@pytest.mark.parametrize(
    "seal",
    ["", "null", "[]", '{"format": 1}', '{"format": 1, "files": {"a": 1}}', '{"format": {}}', "\0"],
)
def test_a_damaged_seal(tmp_path: Path, seal: str) -> None:
    path = save(tmp_path, 1, make())
    (save(tmp_path, 2, make()) / "COMPLETE.json").write_text(seal)
    with pytest.warns(UserWarning, match=r"COMPLETE\.json is damaged"):
        assert checkpoint.latest(tmp_path) == path


def test_all_damaged_is_not_the_same_as_none(tmp_path: Path) -> None:
    for path in [save(tmp_path, step, make()) for step in (1, 2)]:
        (path / "state.json").unlink()
    with pytest.raises(DamagedError) as caught:
        checkpoint.latest(tmp_path)
    assert [line.partition(str(tmp_path))[2] for line in caught.value.lines] == [
        "/step-2/state.json is missing.",
        "/step-1/state.json is missing.",
        " are damaged. To start from scratch, remove that folder.",
    ]


def test_a_step_whose_second_saving_fails_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    path = save(tmp_path, 1, made, which="first")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == ".tmp-1":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match="step-1 cannot be written: Input/output error"):
        save(tmp_path, 1, made, which="second")
    assert names(tmp_path) == ["step-1"]
    assert checkpoint.load(path, model=made[0], optimizers=made[1]) == {"which": "first"}


def test_what_is_no_plain_data_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="state/cursor/0: a object cannot be saved"):
        save(tmp_path, 1, make(), cursor=[object()])
    assert names(tmp_path) == []


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    made = make()
    path = save(tmp_path, 1, made)
    checkpoint.load(path, model=made[0], optimizers=made[1])


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    script = Path(__file__).with_name("dying.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path_factory.mktemp("deaths")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("case", "old", "new"), [("first", 0, 1), ("next", 1, 2), ("again", 2, 2)])
def test_killed_before_each_change_to_the_disk(
    deaths: list[dict], case: str, old: int, new: int
) -> None:
    found = [death for death in deaths if death["case"] == case]
    assert len(found) > 15
    assert [death["code"] for death in found] == [9] * (len(found) - 1) + [0]
    for death in found:
        assert death["before"] == death["after"]
        assert death["after"] in (old, new)
        assert all(name.startswith("step-") for name in death["left"])
    assert found[-1]["left"] == [f"step-{new}"]


def test_killed_at_random_moments(deaths: list[dict]) -> None:
    found = [death for death in deaths if death["case"] == "random"]
    assert len(found) >= 10
    assert all(death["loaded"] >= death["saved"] for death in found)
    assert found[-1]["loaded"] > 3  # which earlier scenes left


class Disk:
    """A file system of its own, or a skip where we may not mount one."""

    def __init__(self, at: Path, options: str) -> None:
        at.mkdir()
        self.path = at
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", at], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("may not mount a file system")

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", self.path], check=True)


needs_mount = pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")


@needs_mount
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    made = nn.Linear(300, 300), {}
    with Disk(tmp_path / "disk", "size=800k") as folder:
        path = save(folder, 1, made)
        refused = 0
        for size in range(20_000, 120_000, 4096):  # so that each of the files is the first too many
            (folder / "ballast").write_bytes(b"x" * size)
            try:
                save(folder, 1, made)
            except UserError as error:
                refused += 1
                assert re.fullmatch(  # noqa: PT017
                    rf"{path} cannot be written: No space left on device \(0\.\d MB free\)\. "
                    r"Free some space, or choose another folder\.",
                    str(error),
                )
            assert names(folder) == ["ballast", "step-1"]
            checkpoint.load(path, model=made[0], optimizers={})
        assert 5 < refused < 20
        (folder / "ballast").unlink()
        with pytest.raises(UserError, match="No space"):
            checkpoint.write_model(folder / "m", nn.Linear(500, 500), {})
        with pytest.raises(UserError, match="No space"):
            atomic_write(folder / "m", b"x" * 900_000)
        assert names(folder) == ["step-1"]


@needs_mount
def test_a_read_only_disk(tmp_path: Path) -> None:
    made = nn.Linear(2, 2), {}
    with Disk(tmp_path / "disk", "size=800k") as folder:
        path = save(folder, 1, made)
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with pytest.raises(UserError, match="step-2 cannot be written: Read-only file system"):
            save(folder, 2, made)
        assert checkpoint.latest(folder) == path
        checkpoint.load(path, model=made[0], optimizers={})


def test_other_readers_may_read_it(tmp_path: Path) -> None:
    path = save(tmp_path, 1, (nn.Linear(2, 2), {}))
    modes = {file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert modes == {(path / "COMPLETE.json").stat().st_mode & 0o777}
