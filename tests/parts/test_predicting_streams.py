"""Predicting streams beside loops over their vectors, and what each may know of a text."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.model import Decoder, build
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.parts.context import Context
from archwright.parts.masks import AttentionMask
from archwright.parts.mixers import SoftmaxAttention
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.planning.cost import forward_flops, next_token_flops
from archwright.planning.memory import cache_bytes
from archwright.spec.attention import SoftmaxAttention as Spec
from archwright.spec.model_spec import ModelSpec

LENGTH, DIM, HEADS, STREAMS = 7, 12, 2, 3
BUCKETS = {"kind": "buckets", "num_buckets": 8, "max_distance": 6}
GIVEN: dict[str, dict[str, Tensor]] = {
    "plain": {},
    "documents": {"segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2, 2]])},
    "padding": {"padding_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]) > 0},
}
GIVEN["both"] = {**GIVEN["documents"], **GIVEN["padding"]}


def bucket(distance: int) -> int:
    """The bucket of a distance behind a query: 0, 1, 2, 3, then on a log scale up to 6."""
    if distance < 4:
        return max(0, distance)
    return min(7, int(4 + math.log(distance / 4) / math.log(6 / 4) * 4))


def places(given: dict[str, Tensor], row: int) -> list[tuple[int, int]]:
    """Return the document of each token of a row, and how many real ones stand before it there."""
    documents = given.get("segment_ids", torch.zeros(2, LENGTH))[row].tolist()
    real = given.get("padding_mask", torch.ones(2, LENGTH))[row].tolist()
    return [
        (d, sum(bool(r) for e, r in zip(documents[:p], real[:p], strict=True) if e == d))
        for p, d in enumerate(documents)
    ]


def by_hand(part: Any, x: Tensor, given: dict[str, Tensor], size: int) -> Tensor:
    """What attention makes of each vector, one by one, through a window of `size` keys."""
    q, k, v = (
        (x @ m.weight.T + m.bias).unflatten(-1, (HEADS, -1))
        for m in (part.query, part.key, part.value)
    )
    said = (x @ part.distance_scores.map.weight.T + part.distance_scores.map.bias).unflatten(
        -1, (HEADS, 8)
    )
    mixed = torch.zeros_like(q)
    for row in range(2):
        at = places(given, row)
        real = given.get("padding_mask", torch.ones(2, LENGTH))[row].bool().tolist()
        for column in range((1 + STREAMS) * LENGTH):
            stream, p = divmod(column, LENGTH)
            document, index = at[p]
            sees_as = max(0, index - max(0, stream - 1))
            stands_at = index + (stream > 0)
            seen = [
                (n, stands_at - at[n][1])
                for n in range(LENGTH)
                if real[n] and at[n][0] == document and sees_as - size < at[n][1] <= sees_as
            ]
            seen += [(column, 0)] if stream else []
            for head in range(HEADS):
                scores = [
                    q[row, column, head] @ k[row, n, head] / (DIM // HEADS) ** 0.5
                    + said[row, column, head, bucket(distance)]
                    for n, distance in seen
                ]
                if real[p]:
                    weights = torch.stack(scores).softmax(0)
                    keys = torch.stack([v[row, n, head] for n, _ in seen])
                    mixed[row, column, head] = weights @ keys
    return mixed.flatten(-2) @ part.out.weight.T + part.out.bias


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blockwise", "flex"])
@pytest.mark.parametrize("size", [LENGTH, 3])
@pytest.mark.parametrize("name", GIVEN)
def test_each_vector_sees_the_text_so_far_and_itself(name: str, size: int, kernel: str) -> None:
    given, options = GIVEN[name], {"bias": True, "distance_scores": BUCKETS, "num_heads": HEADS}
    mask = {"kind": "window", "size": size}
    part = SoftmaxAttention(Spec.model_validate({**options, "mask": mask}), DIM, LayerInfo())
    part = part.double().eval()
    torch.manual_seed(1)
    for parameter in part.parameters():
        parameter.data.normal_()
    part.use_kernel(kernel)
    x = torch.randn(2, (1 + STREAMS) * LENGTH, DIM, dtype=torch.float64)
    layout = token_layout(torch.zeros(2, LENGTH).long(), **given).with_streams(STREAMS)  # type: ignore[arg-type]
    context = Context(layout, 2)
    real = given.get("padding_mask", torch.ones(2, LENGTH).bool()).repeat(1, 1 + STREAMS)
    with torch.no_grad():
        part.prepare(context)
        found, expected = part(x, context), by_hand(part, x, given, size)
    torch.testing.assert_close(found[real], expected[real])


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("block", [1, 3, 5, 64])
def test_ranges_of_keys_hold_all_that_is_seen(name: str, block: int) -> None:
    layout = token_layout(torch.zeros(2, LENGTH).long(), **GIVEN[name]).with_streams(STREAMS)  # type: ignore[arg-type]
    view = AttentionMask(LayerInfo().pattern(Spec().mask, 1).value, layout)
    for first in range(0, layout.length, block):
        stop = min(first + block, layout.length)
        for row, ranges in enumerate(view.ranges_of_rows(first, stop)):
            seen = view.dense[row if len(view.dense) > 1 else 0, 0, first:stop].any(0)
            inside = torch.zeros_like(seen)
            for start, end in ranges:
                inside[start:end] = True
            assert not (seen & ~inside).any()


def test_a_vector_stands_a_place_behind_its_token() -> None:
    layout = TokenLayout(3, torch.device("cpu"), start=5).with_streams(2)
    assert layout.position_ids_or_range().tolist() == [[5, 6, 7, 6, 7, 8, 6, 7, 8]]
    assert layout.index_or_range().tolist() == [[5, 6, 7, 5, 6, 7, 4, 5, 6]]
    assert layout.num_predicting == 6


SPEC = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=12).override(
    *("attention.num_heads=2", "predicting_streams=3", "position.kind=learned"),
    "attention.distance_scores.kind=buckets",
)
TWO = (
    *("encoder.kind=stack", "encoder.num_layers=1", "cross_attention.kind=softmax"),
    *("encoder.attention.num_heads=2", "cross_attention.num_heads=2"),
)


def model(*changes: str, seed: int = 0) -> Decoder:
    built = build(SPEC.override(*changes), seed=seed).double()
    torch.manual_seed(seed)
    for parameter in built.parameters():
        parameter.data.normal_()
    return built.eval()


def test_a_further_stream_knows_one_token_less() -> None:
    built = model()
    for (
        parameter
    ) in built.parameters():  # with larger ones a place may see itself by rounding alone
        parameter.data *= 0.5
    tokens = torch.randint(32, (1, 9))
    for changed in range(9):
        other = tokens.clone()
        other[0, changed] += 1
        first, second = (built(t) for t in (tokens, other % 32))
        pairs = [
            (first.logits, second.logits),
            *zip(first.further_logits, second.further_logits, strict=True),
        ]
        for missing, (before, after) in enumerate(pairs):
            moved = (before != after).any(-1)[0].tolist()
            # All see the first token; others once as many as are missing have followed.
            wait = missing if changed else 0
            assert moved == [at >= changed + wait for at in range(9)]


def test_streams_do_not_meet() -> None:
    """What one stream begins with moves no logits of others."""
    built, tokens = model(), torch.randint(32, (1, 9))
    before = built(tokens)
    built.predicting_streams.weight.data[1] += 1  # type: ignore[union-attr]
    after = built(tokens)
    assert torch.equal(after.logits, before.logits)
    assert torch.equal(after.further_logits[1], before.further_logits[1])
    assert (after.further_logits[0] != before.further_logits[0]).any(-1).all()


def test_the_head_reads_streams_and_the_text_passes_through_layers() -> None:
    """The stack's loop, written out."""
    built = model()
    tokens = torch.arange(5)[None]
    vectors = built.predicting_streams.weight  # type: ignore[union-attr]
    x = torch.cat((built.embedding(tokens), *(g.expand(1, 5, -1) for g in vectors)), 1)
    rows = built.position.table.weight  # type: ignore[union-attr]
    x = x + torch.cat((rows[:5], *[rows[1:6]] * 3))
    layout = token_layout(tokens).with_streams(3)
    for layer in built.stack:
        x = layer(x, Context(layout, 1))
    out, expected = built(tokens), built.head(built.norm(x[:, 5:]))
    torch.testing.assert_close(out.logits, expected[:, :5])
    torch.testing.assert_close(out.further_logits[0], expected[:, 5:10])
    torch.testing.assert_close(out.further_logits[1], expected[:, 10:])


@pytest.mark.parametrize("changes", [(), TWO, ("attention.kind=latent", "position.kind=rope")])
def test_a_cache_keeps_the_text_alone(changes: tuple[str, ...]) -> None:
    """And goes on as the whole text does, of which the first stream alone is computed."""
    if "attention.kind=latent" in changes:
        changes = (*changes, "attention.rope_head_dim=4")
    built, plain = model(*changes), model(*changes, "predicting_streams=0")
    tokens, cache = torch.randint(32, (2, 11)), built.new_cache()
    source = (tokens,) if isinstance(built, EncoderDecoder) else ()
    parts = []
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 11)):
        read = (tokens if start == 0 else None,) if source else ()
        out = built(*read, tokens[:, start:stop], cache=cache)
        assert out.further_logits is None
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), built(*source, tokens).logits)
    kept = plain.new_cache()
    plain(*source, tokens, cache=kept)
    assert cache.num_bytes == kept.num_bytes
    assert cache_bytes(built, 11) == cache_bytes(plain, 11)


def test_a_text_may_be_as_long_as_the_context() -> None:
    built = model()
    assert built.position.table.weight.shape[0] == 13  # type: ignore[union-attr]
    built(torch.zeros(1, 12).long())
    with pytest.raises(ValueError, match="found 13 tokens; expected at most context_length = 12"):
        built(torch.zeros(1, 13).long())


def test_each_stream_costs_what_the_text_does() -> None:
    """In maps; between tokens, its vectors see themselves as well, and further streams fewer tokens."""
    found, plain = forward_flops(model(), 8), forward_flops(model("predicting_streams=0"), 8)
    for part, flops in plain.items():
        if part != "layers.attention":
            assert found[part] == pytest.approx({"head": 3}.get(part, 4) * flops)
    causal = 8 * 9 / 2
    per_pair = plain["layers.attention"] / causal
    shown = [causal, causal + 8, (causal - 8 + 1) + 8, (causal - 8 - 7 + 2) + 8]
    assert found["layers.attention"] == pytest.approx(per_pair * sum(shown))
    # Behind a cache the first stream alone is computed.
    of_maps = sum(
        flops * {"head": 1}.get(part, 2)
        for part, flops in plain.items()
        if part != "layers.attention"
    )
    last = of_maps + 8 * per_pair * (8 + 8 + 1)
    assert next_token_flops(model(), 8) == pytest.approx(last)
