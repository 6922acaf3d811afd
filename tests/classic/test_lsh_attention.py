"""Attention by hashing beside its formula, one query and key at a time in float64; beside dense attention where one
chunk holds all; and beside transformers."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.classic.parts.lsh import LSHAttention
from archwright.classic.spec import lsh as spec
from archwright.parts.context import Context
from archwright.parts.token_layout import token_layout
from archwright.spec.errors import UserError
from tests.parts.test_masks import sees

DIM, HEADS, WIDTH, LENGTH = 10, 3, 8, 23
OPTIONS: dict[str, dict[str, Any]] = {
    "one hash": {},
    "three hashes": {"num_hashes": 3},
    "two numbers of buckets": {"num_hashes": 2, "num_buckets": [2, 4]},
    "both sides": {"mask": {"kind": "full"}, "chunks_after": 1, "num_hashes": 2},
    "no chunk beside its own": {"chunks_before": 0, "num_hashes": 2},
    "more chunks than there are": {"chunks_before": 5, "chunk_size": 9, "num_hashes": 2},
    "a window": {"mask": {"kind": "window", "size": 5}, "num_hashes": 2},
    "windows that differ": {
        "mask": {"kind": "dilated_window", "size": 6, "dilation": 2, "dilated_heads": 1}
    },
    "last blocks of texts": {
        "mask": {"kind": "big_bird", "block_size": 2, "num_random": 1, "random": "first"}
    },
    "a scale": {"scale": {"kind": "fixed", "value": 0.5}},
    "chunks of one": {"chunk_size": 1, "chunks_before": 2},
}


def made(options: dict[str, Any]) -> LSHAttention:
    sizes = {"num_heads": HEADS, "head_dim": WIDTH, "num_buckets": 4, "chunk_size": 4}
    part = LSHAttention(spec.LSHAttention.model_validate(sizes | options), DIM).double()
    torch.manual_seed(0)
    for parameter in part.parameters():
        parameter.data = torch.randn_like(parameter) * 1.5 * DIM**-0.5
    return part.eval()


def vectors(length: int = LENGTH) -> Tensor:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(2, length, DIM, generator=dice, dtype=torch.float64)


def by_hand(part: LSHAttention, x: np.ndarray) -> np.ndarray:
    """Return what the formula gives for one text [length, dim]."""
    q, v = (x @ m.weight.detach().numpy().T for m in (part.query_key, part.value))
    rotations = part.rotations(torch.zeros(1, dtype=torch.float64)).numpy()
    heads = []
    for h in range(HEADS):
        mine = slice(h * WIDTH, (h + 1) * WIDTH)
        heads.append(_head(part, h, q[:, mine], v[:, mine], rotations[h]))
    out: np.ndarray = np.concatenate(heads, -1) @ part.out.weight.detach().numpy().T
    return out


def _head(
    part: LSHAttention, head: int, q: np.ndarray, v: np.ndarray, rotations: np.ndarray
) -> np.ndarray:
    choice, length, rounds = part.spec, len(q), len(rotations)
    size = choice.chunk_size
    chunks: list[list[int]] = []  # of all rounds
    for rotation in rotations:
        order = sorted(range(length), key=lambda i: (bucket(part, q[i] @ rotation), i))
        chunks += [order[first : first + size] for first in range(0, length, size)]
    per_round = len(chunks) // rounds
    found = np.zeros_like(v)
    for i in range(length):
        results, sizes = [], []
        for r in range(rounds):
            own = next(n for n in range(r * per_round, (r + 1) * per_round) if i in chunks[n])
            steps = range(-choice.chunks_before, choice.chunks_after + 1)
            keys = [k for step in steps for k in chunks[(own + step) % len(chunks)]]
            if length <= size:
                keys = [*range(length)]
            seen = [k for k in keys if k != i and sees(choice.mask, i, k, head, HEADS, length)]
            scores = [score(part, q[i], q[k]) for k in seen] or [-1e5] * keys.count(i)
            values = v[seen or [i] * keys.count(i)]
            total = np.logaddexp.reduce(scores)
            results.append(np.exp(scores - total) @ values)
            sizes.append(total)
        shares = np.exp(sizes - np.logaddexp.reduce(sizes))
        found[i] = shares @ np.array(results)
    return found


def bucket(part: LSHAttention, turned: np.ndarray) -> int:
    """Return the number of a bucket, whose digits are the buckets of each hash."""
    number, base, at = 0, 1, 0
    for factor in part.factors:
        directions = turned[at : at + factor // 2]
        number += base * int(np.argmax([*directions, *-directions]))
        base, at = base * factor, at + factor // 2
    return number


def score(part: LSHAttention, query: np.ndarray, key: np.ndarray) -> float:
    scale = 0.5 if part.spec.scale.kind == "fixed" else 1 / math.sqrt(WIDTH)
    return float(scale * query @ key / math.sqrt(np.mean(key**2) + 1e-6))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_formula(options: dict[str, Any]) -> None:
    part, x = made(options), vectors()
    expected = np.stack([by_hand(part, row) for row in x.numpy()])
    np.testing.assert_allclose(part(x).detach().numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_document_has_what_it_has_alone(options: dict[str, Any], left: bool) -> None:
    """Between others, and beside padding on either side."""
    part, x = made(options), vectors()
    cuts = [[0, 9, 10, 17, 20], [0, 3, 4, 20, 20]]  # the last of a row is padding
    ids, real = torch.zeros(2, LENGTH).long(), torch.zeros(2, LENGTH).bool()
    shift = LENGTH - 20 if left else 0
    for row, borders in enumerate(cuts):
        for n, (first, stop) in enumerate(pairwise(borders)):
            ids[row, first + shift : stop + shift] = n
        real[row, shift : 20 + shift] = True
    if not left:
        ids[:, 20:] = 7
    layout = token_layout(ids, segment_ids=ids, padding_mask=real)
    found = part(x, Context(layout, 2))
    for row, borders in enumerate(cuts):
        for first, stop in pairwise(borders):
            if first < stop:
                here = slice(first + shift, stop + shift)
                alone = part(x[row : row + 1, here])
                torch.testing.assert_close(found[row : row + 1, here], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["causal", "full"])
@pytest.mark.parametrize("num_hashes", [1, 3])
def test_one_chunk_that_holds_all_is_dense_attention(kind: str, num_hashes: int) -> None:
    part = made({"chunk_size": LENGTH, "num_hashes": num_hashes, "mask": {"kind": kind}})
    x = vectors()
    q, v = (
        m(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for m in (part.query_key, part.value)
    )
    k = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    hidden = torch.eye(LENGTH).bool()
    if kind == "causal":
        hidden = torch.ones(LENGTH, LENGTH).triu().bool()
        hidden[0, 0] = False  # the first token sees nothing else
    weights = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(hidden, -math.inf).softmax(-1)
    expected = part.out((weights @ v).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(part(x), expected, atol=1e-10, rtol=0)


def test_rotations_follow_from_the_seed_alone() -> None:
    a, b, other = (made({"hash_seed": n}).rotations(vectors()) for n in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


def test_keys_of_the_opposite_direction_are_not_seen() -> None:
    """Two opposite directions, in chunks of four: each token sees those of its own direction alone."""
    part = made({"mask": {"kind": "full"}, "chunks_before": 0, "num_buckets": 8})
    sides = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)[:, None]
    x = sides * vectors(1)[0] + 1e-3 * vectors(8)[0]
    x = x[None].requires_grad_()
    for i in range(8):
        (grad,) = torch.autograd.grad(part(x)[0, i].square().sum(), x)
        touched = grad[0].abs().amax(-1) > 0
        assert touched.tolist() == [j % 2 == i % 2 for j in range(8)]


def test_a_part_alone_is_told_how_many_buckets() -> None:
    with pytest.raises(
        UserError, match='num_buckets: found "auto", which follows from context_length'
    ):
        LSHAttention(spec.LSHAttention(), DIM)
