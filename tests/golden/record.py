"""What is recorded of a composition: its hashes, its parameters as they are drawn, and ten losses.

A composition is a file in `compositions/`: a run, or, where no run trains it, a model alone. Only files and functions
that users have are used here, so that changes inside of the package need none here.
"""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import archwright

HERE = Path(__file__).parent
COMPOSITIONS = {path.stem: path for path in sorted((HERE / "compositions").glob("*.toml"))}
GOLDEN = HERE / "golden.json"
TEXT = HERE / "text.txt"
NUM_STEPS = 10
NUM_BYTES = 257
"""Tokens of the tokenizer of bytes."""

RELATIVE = 1e-6
"""Losses that are nearer to each other are equal."""

Record = dict[str, Any]


def is_model(name: str) -> bool:
    """Tell whether a composition is a model alone."""
    return "\n[data]" not in COMPOSITIONS[name].read_text(encoding="utf-8")


def record(name: str) -> Record:
    """Return everything that is kept of a composition."""
    return {"hashes": hashes(name), "losses": losses(name), "tensors": tensors(name)}


def other_numbers(found: Record, kept: Record) -> bool:
    """Tell whether a composition is trained to other losses than were kept."""
    pairs = zip(found["losses"], kept["losses"], strict=True)
    return not all(math.isclose(new, old, rel_tol=RELATIVE) for new, old in pairs)


def hashes(name: str) -> Record:
    """Return the hash of a composition's model, and of its run where it has one."""
    path = COMPOSITIONS[name]
    if is_model(name):
        return {"model": archwright.load(path).hash()}
    run = archwright.load_run(path)
    return {"model": run.model.hash(), "run": run.hash()}


def losses(name: str, *changes: str) -> list[float]:
    """Return the loss of each step, of the composition as it stands or with dotted keys changed."""
    if is_model(name):
        return _losses_of_model(archwright.load(COMPOSITIONS[name]).override(*changes))
    run = archwright.load_run(COMPOSITIONS[name]).override(f"data.text={TEXT}", *changes)
    with TemporaryDirectory() as folder:
        archwright.train(run, out=Path(folder, "run"), quiet=True)
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["loss"] for line in map(json.loads, lines) if line["kind"] == "train"]


def tensors(name: str) -> dict[str, list[Any]]:
    """Return, by name, what is kept of each tensor of a model as it is drawn."""
    if is_model(name):
        model = archwright.build(archwright.load(COMPOSITIONS[name]))
    else:
        run = archwright.load_run(COMPOSITIONS[name])
        model = archwright.build(run.model, seed=run.seed, vocab_size=NUM_BYTES)
    return {name: tensor(value) for name, value in model.state_dict().items()}


def tensor(value: torch.Tensor) -> list[Any]:
    """Return a tensor's shape, its root mean square, and a mean that tells its order."""
    flat = value.detach().double().flatten()
    ramp = torch.linspace(-1, 1, len(flat), dtype=torch.double)
    shape = " x ".join(map(str, value.shape))
    return [shape, flat.square().mean().sqrt().item(), (flat * ramp).mean().item()]


def _losses_of_model(spec: archwright.ModelSpec) -> list[float]:
    """Train on the text's first bytes, which the model partly sees: its masks are no language model's."""
    model = archwright.build(spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.tensor(list(TEXT.read_bytes()))
    rows = text[: NUM_STEPS * 4 * 32].view(NUM_STEPS, 4, 32)
    found = []
    for tokens in rows:
        logits = model(tokens).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
