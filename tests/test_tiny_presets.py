"""Every preset scaled down keeps its choices, learns, and obeys the laws that hold for any model."""

import os

import pytest
import torch
import torch.nn.functional as F

from archwright.model import build
from archwright.spec.attention import LatentAttention, LongformerAttention, SoftmaxAttention
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import flatten
from archwright.spec.read import load, preset_names
from archwright.spec.rules import enforce
from tests.laws.laws import LAWS, Case

NAMES = preset_names("models")

SIZES = {
    *(
        "name",
        "dim",
        "num_layers",
        "context_length",
        "vocab_size",
        "hidden_dim",
        "shared_hidden_dim",
    ),
    *("num_heads", "num_kv_heads", "head_dim", "num_experts", "top_k", "num_groups", "top_groups"),
    *("query_rank", "kv_rank", "nope_head_dim", "rope_head_dim", "value_head_dim"),
    *("size", "memory", "stride", "radius", "period", "block_size"),
    *("prefix", "suffix", "short", "long"),
}
"""What a tiny model may have otherwise."""


def small(name: str) -> ModelSpec:
    """Return a tiny model for tokens that are bytes."""
    return load(name).tiny().override("vocab_size=256", "context_length=48")


DISTINCT = list({small(name).hash(): name for name in reversed(NAMES)}.values())
"""One of those that are the same once they are tiny, as most sizes of a family are."""

ALL_LAWS = int(os.environ.get("COMPOSITIONS", "0")) >= 1000


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_model_has_every_choice_and_every_kind_of_layer(name: str) -> None:
    model, tiny = load(name), load(name).tiny()
    enforce(tiny)
    before, after = flatten(model.model_dump()), flatten(tiny.model_dump())
    assert before.keys() == after.keys()
    changed = {path for path in before if before[path] != after[path]}
    assert {path.rpartition(".")[2] for path in changed - {"attention.scale.dim"}} <= SIZES
    standing, whole = (set(s.layers.names(s.num_layers)) for s in (tiny, model))
    assert standing == whole
    assert tiny.name == f"{name}-tiny"


@pytest.mark.sampled(fast=8)
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_model_is_tiny_and_its_heads_share_keys_alike(name: str) -> None:
    model, tiny = load(name).resolved(), load(name).tiny().resolved()
    assert 3e5 < build(tiny, device="meta").num_parameters() < 1.3e6
    for kind, layer in tiny.layers_by_kind.items():
        few, many = layer.attention, model.layers_by_kind[kind].attention
        if isinstance(few, LatentAttention) and isinstance(many, LatentAttention):
            assert shape(few) == pytest.approx(shape(many))
            continue
        if isinstance(few, LongformerAttention):  # in which no head shares keys
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
@pytest.mark.sampled(fast=1, full=16)
@pytest.mark.parametrize("name", DISTINCT)
def test_a_tiny_model_learns(name: str) -> None:
    model = build(small(name), seed=0)
    text = torch.tensor(list(b"the quick brown fox jumps over the lazy dog. " * 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    losses = []
    for start in range(24):
        rows = text[start : start + 60].unfold(0, 40, 7)
        logits = model(rows[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < sum(losses[:4]) - 0.4


@pytest.mark.slow
@pytest.mark.sampled(fast=2, full=30)
@pytest.mark.parametrize("name", DISTINCT)
def test_a_tiny_model_obeys_the_laws(name: str) -> None:
    """A quarter of the laws for each, in turn; all of them in `make laws`."""
    number = DISTINCT.index(name)
    case = Case(small(name).override("vocab_size=64", "context_length=16"), number)
    for law in LAWS if ALL_LAWS else LAWS[number % 4 :: 4]:
        law(case)
