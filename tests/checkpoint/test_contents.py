"""Checkpoints whose seal was made anew after somebody changed what they hold: one line, or a training that goes on."""

import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from archwright import checkpoint
from archwright.checkpoint import DamagedError
from archwright.spec.errors import UserError

ODD: tuple[Any, ...] = (None, -1, 10**30, "x", [], {}, [1, 2], {"$tensor": "x"}, {"$dtype": "save"})


def make() -> tuple[nn.Module, dict[str, torch.optim.Optimizer]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    plain, other = list(model[0].parameters()), list(model[1].parameters())
    return model, {
        "adamw": torch.optim.AdamW(plain, lr=0.1),
        "sgd": torch.optim.SGD(other, lr=0.1, momentum=0.9, nesterov=True),
    }


def train(model: nn.Module, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    model(torch.ones(4, 2)).square().sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, optimizers = make()
    train(model, optimizers)
    state = {"step": 1, "recent": [1.5]}
    folder = tmp_path_factory.mktemp("saved")
    return checkpoint.save(folder, 1, model=model, optimizers=optimizers, state=state, keep=1)


def seal_anew(path: Path) -> None:
    seal = json.loads((path / "COMPLETE.json").read_text())
    for name, file in seal["files"].items():
        content = (path / name).read_bytes()
        file |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "COMPLETE.json").write_text(json.dumps(seal))


def token_layout(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every node of a tree, the root first."""
    yield at
    for key in (
        tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    ):
        yield from token_layout(tree[key], (*at, key))


def changed(tree: Any, at: tuple[Any, ...], act: Callable[[Any, Any], None]) -> Any:
    tree = [copy.deepcopy(tree)]
    holder = tree
    for key in (0, *at)[:-1]:
        holder = holder[key]
    act(holder, (0, *at)[-1])
    return tree[0] if tree else None


def put(value: Any) -> Callable[[Any, Any], None]:
    return lambda holder, key: holder.__setitem__(key, value)


@pytest.mark.slow
def test_every_place_of_the_state_may_hold_anything(saved: Path, tmp_path: Path) -> None:
    tree = json.loads((saved / "state.json").read_text())
    refused = taken = 0
    lines: set[str] = set()
    for number, at in enumerate(token_layout(tree)):
        acts = [put(ODD[(number + i) % len(ODD)]) for i in range(2)]
        for act in (*acts, lambda holder, key: holder.pop(key)):
            path = Path(shutil.copytree(saved, tmp_path / "step-1", dirs_exist_ok=True))
            (path / "state.json").write_text(json.dumps(changed(tree, at, act)))
            seal_anew(path)
            model, optimizers = make()
            try:
                state = checkpoint.load(path, model=model, optimizers=optimizers)
            except UserError as error:
                refused += 1
                lines |= set(error.lines)
            else:
                taken += 1
                assert isinstance(state, dict)
                train(model, optimizers)
    assert refused > 100
    assert max(map(len, lines)) < 300
    assert (
        taken > 10
    )  # of what the caller's state holds, and options that torch adds where they are missing


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "NaN", "\\ud800", "{}", "[]", "null"])
def test_a_state_that_is_no_state(text: str, saved: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(saved, tmp_path / "step-1"))
    (path / "state.json").write_text(text)
    seal_anew(path)
    model, optimizers = make()
    with pytest.raises(DamagedError, match=r"state\.json is damaged"):
        checkpoint.load(path, model=model, optimizers=optimizers)


@pytest.mark.parametrize(
    "seal",
    [
        *('{"format": Infinity, "files": {}}', "[" * 100_000, '{"format": 2, "files": {}}'),
        '{"format": 2, "files": {"../../x": {"bytes": 1, "sha256": ""}}}',
        '{"format": 2, "files": {"state.json": {"bytes": -1, "sha256": ""}}}',
    ],
)
def test_an_older_checkpoint_is_used_where_a_seal_is_odd(
    seal: str, saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "step-1")
    (shutil.copytree(saved, tmp_path / "step-2") / "COMPLETE.json").write_text(seal)
    with pytest.warns(UserWarning, match="step-1 is used instead"):
        assert checkpoint.latest(tmp_path) == tmp_path / "step-1"
    assert list(checkpoint.complete(tmp_path)) == [1]


def test_an_older_checkpoint_is_used_where_one_cannot_be_set(saved: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        shutil.copytree(saved, tmp_path / f"step-{step}")
    (tmp_path / "step-2" / "state.json").write_text("{}")
    seal_anew(tmp_path / "step-2")
    model, optimizers = make()

    def use(path: Path) -> None:
        checkpoint.load(path, model=model, optimizers=optimizers)

    with pytest.warns(UserWarning, match=r"step-2.*is damaged.*step-1 is used instead"):
        assert checkpoint.use_latest(tmp_path, use) == tmp_path / "step-1"
