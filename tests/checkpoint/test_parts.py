"""Checkpoints in parts: written by some, read by others, and by the reader of torch.distributed.checkpoint."""

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor, nn

from archwright import checkpoint
from archwright.checkpoint import optimizers as of_optimizers
from archwright.checkpoint.parts import INFO, Stored, is_whole, part_name
from archwright.files import DamagedError
from archwright.scale.layout import Block
from archwright.spec.errors import UserError

Grid = tuple[int, int]
"""How many rows and columns of blocks a matrix is cut into."""
STATE = {"step": 3, "recent": [1.5]}


class Model(nn.Module):
    """Two maps that are tied, one whose rows do not divide, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 7), nn.Linear(4, 7, bias=False)
        self.second.weight = self.first.weight
        self.number = nn.Parameter(torch.randn(()))
        self.register_buffer("seen", torch.randn(3).bfloat16())


@pytest.fixture
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    return model, optimizer


def cut(tensor: Tensor, grid: Grid) -> Iterator[tuple[Tensor, Block]]:
    """Yield the blocks of a tensor by process: rows as FSDP2 cuts them, columns as a tensor group does; of what cannot
    be cut, copies."""
    size = grid[0] * grid[1]
    for number, (row, column) in enumerate(itertools.product(*map(range, grid))):
        if not tensor.ndim:
            yield tensor, Block((), (), (), size, number)
            continue
        offsets, sizes = [0] * tensor.ndim, [*tensor.shape]
        most = -(-sizes[0] // grid[0])
        offsets[0] = min(row * most, sizes[0])
        sizes[0] = min(most, sizes[0] - offsets[0])
        copies, copy = grid[1], column
        if tensor.ndim > 1:
            copies, copy = 1, 0
            sizes[1] //= grid[1]
            offsets[1] = sizes[1] * column
        where = tuple(slice(a, a + b) for a, b in zip(offsets, sizes, strict=True))
        yield (tensor[where], Block((*tensor.shape,), tuple(offsets), tuple(sizes), copies, copy))


def save_in_parts(
    folder: Path, trained: tuple[nn.Module, torch.optim.Optimizer], grid: Grid, step: int = 3
) -> Path:
    model, optimizer = trained
    names, metadata = checkpoint.steps.names_of(model)
    weights, size = model.state_dict(), grid[0] * grid[1]
    saved = of_optimizers.read_optimizer(optimizer, model)
    draft, seals = checkpoint.steps.begin(folder, step, 9), {}
    for number in range(size):
        kept = {
            i: {key: [*cut(value, grid)][number][0] for key, value in state.items()}
            for i, state in saved["state_dict"]["state"].items()
        }
        own = saved | {"state_dict": saved["state_dict"] | {"state": kept}}
        snapshot = checkpoint.steps.take_part(
            step,
            (number, size),
            tensors={name: [*cut(weights[name], grid)][number] for name in names},
            optimizers={"main": own},
            blocks={"main": [[*cut(p, grid)][number][1] for p in model.parameters()]},
            metadata=metadata,
            state=None if number else STATE,
        )
        seals |= checkpoint.steps.write_part(draft, snapshot)
    checkpoint.steps.finish(folder, step, seals, 9)
    return folder / f"step-{step}"


def save_whole(folder: Path, trained: tuple[nn.Module, torch.optim.Optimizer]) -> Path:
    model, optimizer = trained
    return checkpoint.save(
        folder, 3, model=model, optimizers={"main": optimizer}, state=STATE, keep=9
    )


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 2), (2, 2), (5, 1), (8, 2)])
def test_one_process_opens_what_many_wrote(
    grid: Grid, trained: tuple[nn.Module, torch.optim.Optimizer], tmp_path: Path
) -> None:
    path = save_in_parts(tmp_path, trained, grid)
    assert len([*path.glob("model-*")]) == grid[0] * grid[1]
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.2)
    assert checkpoint.load(path, model=model, optimizers={"main": optimizer}) == STATE
    for name, value in trained[0].state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert_equal(optimizer.state_dict(), trained[1].state_dict())
    assert checkpoint.read_model(path / "model.safetensors").keys() == model.state_dict().keys()


@pytest.mark.parametrize("wrote", [None, (2, 1), (3, 2), (8, 1)])
@pytest.mark.parametrize("reads", [(1, 1), (2, 2), (3, 1), (5, 2)])
def test_others_read_what_some_wrote(
    wrote: Grid | None,
    reads: Grid,
    trained: tuple[nn.Module, torch.optim.Optimizer],
    tmp_path: Path,
) -> None:
    path = save_in_parts(tmp_path, trained, wrote) if wrote else save_whole(tmp_path, trained)
    model, optimizer = trained
    names, _ = checkpoint.steps.names_of(model)
    fresh = Model()
    given = torch.optim.AdamW(fresh.parameters())
    assert checkpoint.steps.check(path, model=fresh, optimizers={"main": given}) == STATE
    stored, read_optimizer = checkpoint.steps.parts_of(path)
    assert {*stored} == {*names}
    parameters = [*model.parameters()]
    for number in range(reads[0] * reads[1]):
        for name in names:
            value, block = [*cut(model.state_dict()[name], reads)][number]
            assert torch.equal(stored.block(name, block), value), name
        blocks = [[*cut(p, reads)][number][1] for p in parameters]
        states, _ = read_optimizer("main", blocks)
        for p, state in zip(parameters, states, strict=True):
            expected = optimizer.state[p]
            assert state.keys() == expected.keys()
            for key, value in expected.items():
                assert torch.equal(state[key], [*cut(value, reads)][number][0]), key


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_them_too(
    trained: tuple[nn.Module, torch.optim.Optimizer], tmp_path: Path
) -> None:
    """The reader of torch.distributed.checkpoint finds the weights, and nothing that is pickled is there."""
    path = save_in_parts(tmp_path, trained, (3, 2))
    names, _ = checkpoint.steps.names_of(trained[0])
    found = {name: torch.zeros_like(trained[0].state_dict()[name]) for name in names}
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(str(path)), no_dist=True)
    for name, value in found.items():
        assert torch.equal(value, trained[0].state_dict()[name]), name
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}


def test_it_counts_once_it_is_finished(
    trained: tuple[nn.Module, torch.optim.Optimizer], tmp_path: Path
) -> None:
    whole = save_whole(tmp_path, trained)
    checkpoint.steps.begin(tmp_path, 4, 9)
    assert checkpoint.latest(tmp_path) == whole
    checkpoint.remove_stale(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-3"]
    with pytest.raises(UserError, match="has a checkpoint of step 3, later than step 2"):
        checkpoint.steps.begin(tmp_path, 2, 9)


@pytest.mark.parametrize("hurt", ["changed", "cut", "gone", "gone from the seal"])
def test_a_damaged_part_is_named_and_the_one_before_is_used(
    hurt: str, trained: tuple[nn.Module, torch.optim.Optimizer], tmp_path: Path
) -> None:
    before = save_in_parts(tmp_path, trained, (2, 1))
    path = save_in_parts(tmp_path, trained, (2, 1), step=5)
    file = path / part_name("optimizers.safetensors", 1, 2)
    content = file.read_bytes()
    match hurt:
        case "changed":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "cut":
            file.write_bytes(content[:-1])
        case "gone":
            file.unlink()
        case _:
            seal = json.loads((path / "COMPLETE.json").read_text())
            del seal["files"][file.name]
            (path / "COMPLETE.json").write_text(json.dumps(seal))
    model = Model()
    given = {"main": torch.optim.AdamW(model.parameters())}
    for use in (checkpoint.load, checkpoint.steps.check):
        with pytest.raises(DamagedError) as error:
            use(path, model=model, optimizers=given)
        (line,) = error.value.lines
        assert (file.name if "seal" not in hurt else "lacks optimizers.safetensors") in line
    with pytest.warns(UserWarning, match=r"step-3 is used instead"):
        assert checkpoint.use_latest(tmp_path, partial(checkpoint.verify, hashes=True)) == before


def test_what_parts_do_not_cover_is_damage(
    trained: tuple[nn.Module, torch.optim.Optimizer], tmp_path: Path
) -> None:
    path = save_in_parts(tmp_path, trained, (2, 1))
    (path / part_name("model.safetensors", 0, 2)).unlink()
    with pytest.raises(DamagedError, match=r"parts of first\.\w+ are missing"):
        Stored(path / "model.safetensors")


@pytest.mark.parametrize("begin", ["[0.0]", "[true]", "[-2]", "[null]", "[0, 0]", "0", "[" * 9999])
def test_a_part_that_begins_nowhere_is_damage(tmp_path: Path, begin: str) -> None:
    """Two parts of as many numbers as there are."""
    for number, text in enumerate((begin, "[2]")):
        about = {INFO: f'{{"x": {{"saved_offsets": {text}}}}}'}
        save_file({"x": torch.ones(2)}, tmp_path / part_name("m.safetensors", number, 2), about)
    with pytest.raises(DamagedError) as caught:
        Stored(tmp_path / "m.safetensors").whole("x")
    (line,) = caught.value.lines
    assert line.endswith(
        "00001-of-00002.safetensors is damaged: its metadata does not fit its tensors."
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["m.safetensors"], True),
        (["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"], True),
        (["m-00001-of-00001.safetensors"], True),
        (["m-00001-of-00002.safetensors"], False),
        (["m-00001-of-00002.safetensors", "m-00002-of-00003.safetensors"], False),
        (["m-00002-of-00001.safetensors"], False),
        (["m.safetensors", "m-00001-of-00001.safetensors"], False),
        (["n.safetensors"], False),
        ([], False),
    ],
)
def test_files_or_all_parts_of_them(names: list[str], expected: bool) -> None:
    assert is_whole("m.safetensors", names) is expected


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
