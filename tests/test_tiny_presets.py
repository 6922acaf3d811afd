"""Every preset scaled down keeps its choices, learns, and obeys the laws that hold for any model."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from archwright.data.inputs import Batch, Inputs
from archwright.data.objectives import Examples, Vocabulary
from archwright.model import build
from archwright.spec.attention import SoftmaxAttention
from archwright.spec.latent import LatentAttention
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import Objective
from archwright.spec.overrides import flatten
from archwright.spec.read import load, load_run, preset_names
from archwright.spec.rules import enforce
from archwright.testing.law import NotTried
from docs._make.lecture import table
from tests.laws.laws import LAWS, Case
from tests.laws.test_two_stacks import LAWS as TWO_STACK_LAWS
from tests.laws.test_two_stacks import Texts

NAMES = preset_names("models")


def small(name: str) -> ModelSpec:
    """Return a tiny model for tokens that are bytes."""
    return load(name).tiny().override("vocab_size=256", "context_length=48")


HAVE_SOURCES = [name for name in NAMES if not load(name).encoder.is_none]
"""Models of two stacks."""
BYTES = 128
"""The first id of a special token, of texts in ASCII."""


def words_of(objective: Objective) -> Vocabulary:
    """Return a vocabulary of bytes, with the special tokens of an objective above them."""
    special = {token: BYTES + i for i, token in enumerate(objective.special_tokens)}
    return Vocabulary(BYTES, 0, special, lambda ids: "".join(map(chr, ids)))


def lesson(objective: Objective, step: int) -> Batch:
    """Return a batch of an easy text that an objective makes, the same in every run."""
    text = np.frombuffer(b"the quick brown fox jumps. over the lazy dog. " * 4, np.uint8)
    length = objective.window_length(40)
    at = (step + np.arange(0, 49, 7))[:, None] + np.arange(length)
    windows = Inputs(text[at % len(text)].astype(np.int64))
    if objective.has_pairs:  # to say a text in capitals
        rows = windows.tokens[:, :12]
        windows = Inputs(rows, decoder_tokens=rows & ~32)
    return Examples(objective, words_of(objective)).batch(windows, step)


DISTINCT = list({small(name).hash(): name for name in reversed(NAMES)}.values())
"""One of those that are the same once they are tiny, as most sizes of a family are."""

LECTURE = [row.preset for row in table() if row.preset in NAMES]
"""Models of the lecture's table that can be built."""

ALL_LAWS = int(os.environ.get("COMPOSITIONS", "0")) >= 1000


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_model_has_every_choice_and_every_kind_of_layer(name: str) -> None:
    model, tiny = load(name), load(name).tiny()
    enforce(tiny)
    before, after = flatten(model.model_dump()), flatten(tiny.model_dump())
    assert before.keys() == after.keys()
    changed = {path for path in before if before[path] != after[path]}
    follow_width = {"attention.scale.dim", "attention.scale.value"}
    follow_width |= {"head.logit_scale", "head.logit_divisor"}
    # Choices, switches and factors stay; sizes, and names of layers in the arrangement, may change.
    others = {path for path in changed if not is_size(before[path])}
    others = {path for path in others if not path.endswith(tuple(follow_width))}
    assert others == {"name"}
    standing, whole = (set(s.layers.names(s.num_layers)) for s in (tiny, model))
    assert standing == whole
    assert tiny.name == f"{name}-tiny"


def is_size(value: object) -> bool:
    """True for whole numbers, and for tuples."""
    return isinstance(value, int | tuple) and not isinstance(value, bool)


@pytest.mark.sampled(fast=8)
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_model_is_tiny_and_its_heads_share_keys_alike(name: str) -> None:
    model, tiny = load(name).resolved(), load(name).tiny().resolved()
    least = 5e4 if model.layers.shared else 2.9e5
    most = (
        1.7e6 if "jamba" in name else 1.52e6
    )  # whose cycle of eight layers has four mixtures of experts
    assert least < build(tiny, device="meta").num_parameters() < most
    for kind, layer in tiny.layers_by_kind.items():
        few, many = layer.attention, model.layers_by_kind[kind].attention
        if isinstance(few, LatentAttention) and isinstance(many, LatentAttention):
            rounded = 1 / int(few.nope_head_dim)  # widths are even
            assert shape(few) == pytest.approx(shape(many), abs=rounded)
            continue
        if "num_kv_heads" not in type(few).model_fields:  # each head has its own keys
            continue
        assert isinstance(few, SoftmaxAttention)
        assert isinstance(many, SoftmaxAttention)
        share = int(many.num_heads) / int(many.num_kv_heads)
        assert int(few.num_heads) / int(few.num_kv_heads) == pytest.approx(min(share, 4), rel=0.5)


def shape(attention: LatentAttention) -> list[float]:
    """Return the widths that all heads have, and that of what they are made from, over a head's."""
    own = attention.nope_head_dim
    widths = (attention.rope_head_dim, attention.value_head_dim, attention.kv_rank)
    return [int(width) / int(own) for width in widths]


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("name", DISTINCT)
def test_a_tiny_model_learns(name: str) -> None:
    """By the objective that it was published with."""
    losses = losses_of(name, 24)
    assert sum(losses[-4:]) / 4 < losses[0] - 1


@pytest.mark.parametrize("name", ["palm-540b", "granite-3-8b", "phi-3-small", "command-a"])
def test_a_tiny_model_of_a_wide_one_learns_as_fast(name: str) -> None:
    """Their logits have factors for their width, with which small ones keep to the loss of the first step."""
    assert losses_of(name, 12)[-1] < 2


@pytest.mark.slow
@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize(
    "name", [*LECTURE, "longformer-base", "led-base", "reformer", "grok-1", "dclm-7b"]
)
def test_a_tiny_model_of_the_lecture_begins_at_guessing_and_learns_tokens(name: str) -> None:
    """From near ln V to below the middle between that and the entropy of the targets, by its own objective."""
    guess, losses = math.log(256), losses_of(name, 60)
    objective = load_run(name).objective
    targets = np.concatenate([np.ravel(lesson(objective, step).targets) for step in range(30)])
    counts = np.bincount(targets[targets >= 0])
    shares = counts[counts > 0] / counts.sum()
    entropy = -float((shares * np.log(shares)).sum())
    assert losses[0] == pytest.approx(guess, abs=0.9)
    assert sum(losses[-4:]) / 4 < (guess + entropy) / 2


def losses_of(name: str, steps: int) -> list[float]:
    """Train the tiny model of a preset, and return the loss of each step."""
    torch.manual_seed(0)  # of dropout
    model, objective = build(small(name), seed=0), load_run(name).objective
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    losses = []
    for step in range(steps):
        batch = lesson(objective, step).map(torch.from_numpy)
        logits = model(**batch.inputs.given()).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("name", DISTINCT)
def test_a_tiny_model_obeys_the_laws(name: str) -> None:
    """A quarter of the laws for each, in turn; all of them in `make laws`."""
    number, spec = DISTINCT.index(name), small(name).override("vocab_size=64", "context_length=16")
    spec = spec.generator_model or spec  # that of both stacks has laws of its own, in tests/model
    case, laws = (
        (Case(spec, number), LAWS) if name not in HAVE_SOURCES else two_stacks(spec, number)
    )
    for law in laws if ALL_LAWS else laws[number % 4 :: 4]:
        with suppress(NotTried):  # no cache where tokens see what follows them
            law(case)


def two_stacks(spec: ModelSpec, number: int) -> tuple[Any, Sequence[Callable[[Any], None]]]:
    """Return a case of a model of two stacks, and the laws of these."""
    return Texts(spec, number), TWO_STACK_LAWS
