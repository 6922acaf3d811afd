"""Values and states that cross layers: KV sharing, residuals that attend to earlier layers, per-layer embeddings."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from archwright import register
from archwright.model import Decoder, build
from archwright.parts.context import Context
from archwright.parts.kernels import ScoreMods
from archwright.parts.linear import Linear, TokenTable
from archwright.parts.mixers import AttentionMixer, Mixer
from archwright.parts.residuals import Groups, Wiring
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import RecurrentState
from archwright.planning.cost import next_token_flops
from archwright.planning.memory import cache_bytes
from archwright.spec.attention import Attention
from archwright.spec.errors import UserError
from archwright.spec.masks import Causal, Mask
from archwright.spec.mixers import ALL_INPUTS, Recurrence
from archwright.spec.model_spec import ModelSpec
from archwright.spec.residuals import Residual

SMALL = ModelSpec(dim=32, num_layers=4, vocab_size=64, context_length=24)
TOKENS = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.usefixtures("visitors")


class SharedKeys(AttentionMixer):
    """Attention of two heads; layers after `first_shared` read keys and values of layer `first_shared`."""

    def __init__(self, spec: Any, dim: int, layer: LayerInfo) -> None:
        super().__init__(spec.mask, dim, layer, 2, key_dim=dim // 2)
        self.query, self.out = Linear(dim, dim), Linear(dim, dim, is_residual_output=True)
        self.reads = layer.number > spec.first_shared
        if self.reads:
            self.reads_state_of = spec.first_shared
            self.reads_from = {"key": spec.first_shared, "value": spec.first_shared}
            return
        self.key, self.value = Linear(dim, dim), Linear(dim, dim)
        if layer.number == spec.first_shared:
            self.provides = {"key": dim, "value": dim}

    @property
    def flops_per_pair(self) -> int:
        return 4 * self.query.d_out

    @property
    def kept_per_token(self) -> int:
        return 2 * self.query.d_out

    def forward(
        self, x: Tensor, context: Context, state: Any = None, projected: Any = None
    ) -> Tensor:
        mask = context.mask(self.pattern, self.num_heads)
        assert self.rotary is not None
        q, rotation = self.query(x).unflatten(-1, (2, -1)), context.rotation(self.rotary)
        q = self.rotary.value.rotate_query(q, rotation)
        if self.reads:
            k, v = context.read("key"), context.read("value")
        else:
            k, v = self.key(x).unflatten(-1, (2, -1)), self.value(x).unflatten(-1, (2, -1))
            k, v = context.all_keys(state, self.rotary.value.rotate_key(k, rotation), v)
            if self.provides:
                context.provide("key", k)
                context.provide("value", v)
        out: Tensor = self.out(
            self.attend(q, k, v, mask, ScoreMods(q.shape[-1] ** -0.5)).flatten(-2)
        )
        return out


def sharing(first_shared: int = 2, *words: str) -> ModelSpec:
    class Shared(Attention):
        kind: Literal["shared"] = "shared"
        takes: ClassVar[frozenset[str]] = ALL_INPUTS
        first_shared: int = 2
        mask: Mask = Causal()

    register(Shared, SharedKeys)
    words = ("attention.kind=shared", f"attention.first_shared={first_shared}", *words)
    return SMALL.override(*words)


def same_in_pieces(model: Decoder, **given: Tensor) -> None:
    cache = model.eval().new_cache()
    parts = [
        model(part, cache=cache, **{name: x[:, i * 6 : i * 6 + 6] for name, x in given.items()})
        for i, part in enumerate(TOKENS.split(6, 1))
    ]
    found = torch.cat([part.logits for part in parts], 1)
    torch.testing.assert_close(found, model(TOKENS, **given).logits, rtol=1e-9, atol=1e-9)


class TestSharedKeys:
    def test_read_in_pieces_they_are_the_same(self) -> None:
        model = build(sharing(), seed=1).double()
        same_in_pieces(model)
        same_in_pieces(
            model, padding_mask=torch.arange(24).expand(2, -1) >= torch.tensor([[0], [3]])
        )

    def test_a_shared_state_is_kept_once(self) -> None:
        model, plain = build(sharing()), build(sharing(4))
        sizes = []
        for one in (model, plain):
            cache = one.new_cache()
            one(TOKENS, cache=cache)
            sizes.append((cache.num_bytes, cache_bytes(one, 24)))
        assert sizes[0] == tuple(size // 2 for size in sizes[1])
        assert cache.states(3)["attention"] is not cache.states(1)["attention"]

    def test_a_token_is_counted_with_the_state_of_a_later_layer_than_the_first(self) -> None:
        """Two more layers that read: products of their weights, and scores and mixing of 24 keys."""
        more, less = (build(sharing(3, f"num_layers={n}"), device="meta") for n in (6, 4))
        layer = 2 * sum(p.numel() for p in more.layers[4].parameters() if p.ndim == 2)
        added = next_token_flops(more, 24) - next_token_flops(less, 24)
        assert added == 2 * (layer + 4 * 32 * 24)
        assert [mixer.reads_state_of for mixer in more.mixers()][3:] == [3, 3, 3]

    def test_texts_can_be_reordered(self) -> None:
        model = build(sharing(), seed=1).double()
        cache = model.new_cache()
        model(TOKENS[:, :12], cache=cache)
        cache.reorder(torch.tensor([1, 0]))
        assert cache.states(3)["attention"] is cache.states(1)["attention"]
        found = model(TOKENS.flip(0)[:, 12:], cache=cache).logits
        torch.testing.assert_close(found, model(TOKENS.flip(0)).logits[:, 12:])

    def test_gradients_flow_back_and_recomputation_keeps_them(self) -> None:
        model = build(sharing(), seed=1).double()
        found = []
        for what in ("none", "full", "selective"):
            model.zero_grad()
            model.checkpoint_activations(what)(TOKENS).logits.square().mean().backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for plain, *recomputed in zip(*found, strict=True):
            assert plain.any()
            assert all(torch.equal(gradient, plain) for gradient in recomputed)


class Reads(Mixer):
    """A branch of which a test says what it reads and provides; it adds up the values that it reads."""

    links: ClassVar[dict[int, dict[str, Any]]] = {}

    def __init__(self, spec: Any, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.layer, self.map = layer, Linear(dim, dim, is_residual_output=True)
        for name, value in self.links.get(layer.number, {}).items():
            setattr(self, name, value)

    def forward(
        self, x: Tensor, context: Context, state: Any = None, projected: Any = None
    ) -> Tensor:
        out: Tensor = self.map(x) + sum(context.read(name) for name in self.reads_from)
        for name in self.provides:
            context.provide(name, out)
        return out

    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()


def linked(links: Mapping[int, dict[str, Any]], *words: str) -> ModelSpec:
    class Linked(Recurrence):
        kind: Literal["linked"] = "linked"
        takes: ClassVar[frozenset[str]] = ALL_INPUTS

    register(Linked, type("Linking", (Reads,), {"links": links}))
    return SMALL.override("recurrence.kind=linked", *words)


@pytest.mark.parametrize(
    ("links", "words", "line"),
    [
        (
            {1: {"reads_from": {"v": 2}}, 2: {"provides": {"v": 32}}},
            (),
            'layer 1: reads "v" of layer 2; expected one of "embedding" of layer 0',
        ),
        (
            {1: {"provides": {"v": 32}}, 3: {"reads_from": {"w": 1}}},
            (),
            'layer 3: reads "w" of layer 1; expected one of "embedding" of layer 0, "v" of layer 1',
        ),
        (
            {1: {"provides": {"v": 32}}, 3: {"provides": {"v": 32}}},
            (),
            'layer 3: provides "v", as layer 1 does; expected another name',
        ),
        (
            {2: {"provides": {"v": 32}}},
            ("residual.kind=reversible",),
            'layer 2: passes "v" between layers, and reversible layers are recomputed without it; expected another '
            "residual",
        ),
        (
            {2: {"reads_state_of": 3}},
            (),
            "layer 2: recurrence reads the state of layer 3; expected an earlier layer with a state of its own",
        ),
        (
            {2: {"reads_state_of": 1}, 3: {"reads_state_of": 2}},
            (),
            "layer 3: recurrence reads the state of layer 2; expected an earlier layer with a state of its own",
        ),
    ],
)
def test_what_nobody_provides_is_refused(
    links: dict[int, dict[str, Any]], words: Sequence[str], line: str
) -> None:
    with pytest.raises(UserError) as error:
        build(linked(links, *words), device="meta")
    assert error.value.lines == (line,)


def test_a_value_is_that_of_the_first_layer_that_provides_it() -> None:
    """Shared layers provide it again, and so do layers that are recomputed."""
    links = {1: {"provides": {"v": 32}}, 2: {"reads_from": {"v": 1, "embedding": 0}}}
    words = ("layers.shared=true", 'layers.cycle=["default", "other"]')
    model = build(linked(links, *words, "layer_kinds.other.norm.kind=layer"), seed=1)
    first, second = (model.layers[i].branch("recurrence") for i in range(2))
    outs: list[Tensor] = []
    reads: list[Tensor] = []
    first.register_forward_hook(lambda m, args, out: outs.append(out))
    second.map.register_forward_hook(lambda m, args, out: reads.append(-out))
    second.register_forward_hook(lambda m, args, out: reads.append(out))
    model(TOKENS)
    embedding = model.embedding(TOKENS)
    assert len(outs) == 2
    for minus_own, own_and_read in zip(reads[::2], reads[1::2], strict=True):
        torch.testing.assert_close(minus_own + own_and_read, outs[0] + embedding)


class AttentionResidual(Wiring):
    """x = softmax-weighted mean of the results of all groups before, as in attention over depth."""

    def __init__(self, spec: Any, dim: int, layer: LayerInfo, groups: Any) -> None:
        super().__init__(spec, dim, layer, groups)
        self.number = layer.number
        self.provides = {f"result_{layer.number}": dim}
        self.reads_from = {"embedding": 0} | {f"result_{i}": i for i in range(1, layer.number)}
        self.scores = nn.Parameter(torch.zeros(layer.number))

    def forward(self, x: Tensor, groups: Groups, context: Context | None = None) -> Tensor:
        assert context is not None
        before = torch.stack([context.read(name) for name in self.reads_from], -1)
        x = (before * self.scores.softmax(-1)).sum(-1)
        for name, branches in groups.items():
            x = self.add(x, self.norms[name](x), branches)
        context.provide(f"result_{self.number}", x)
        return x

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.scores)


def test_a_wiring_attends_to_the_layers_before() -> None:
    class OverDepth(Residual):
        kind: Literal["over_depth"] = "over_depth"
        final_norm: ClassVar[bool] = True

    register(OverDepth, AttentionResidual)
    model = build(SMALL.override("residual.kind=over_depth"), seed=1).double()
    same_in_pieces(model)
    gradients = []
    for what in ("none", "full"):
        model.zero_grad()
        model.checkpoint_activations(what)(TOKENS).logits.square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)
    scores = [layer.residual.scores.grad for layer in model.stack]
    assert all(grad is not None and grad.any() for grad in scores[1:])


class PerLayerEmbedding(Mixer):
    """y = out(table[token]), of one table that the first layer has and provides a slice of to each layer."""

    def __init__(self, spec: Any, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        first, self.number = layer.alike[0], layer.number
        self.rank = layer.alike.index(layer.number)
        self.out = Linear(8, dim, is_residual_output=True)
        self.table: TokenTable | None = None
        if layer.number == first:
            self.table = layer.token_table(8 * len(layer.alike), "recurrence.table")
            self.provides = {"table": 8 * len(layer.alike)}
        else:
            self.reads_from = {"table": first}

    def forward(
        self, x: Tensor, context: Context, state: Any = None, projected: Any = None
    ) -> Tensor:
        if self.table is not None:
            context.provide("table", self.table(context.tokens))
        # [batch, length, layers * 8] to [batch, length, 8]
        out: Tensor = self.out(context.read("table").unflatten(-1, (-1, 8))[..., self.rank, :])
        return out

    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()


def test_layers_of_a_kind_share_a_table_by_rank() -> None:
    class OfTable(Recurrence):
        kind: Literal["of_table"] = "of_table"
        takes: ClassVar[frozenset[str]] = ALL_INPUTS

    register(OfTable, PerLayerEmbedding)
    words = ("recurrence.kind=of_table", "layer_kinds.bare.recurrence.kind=none")
    model = build(SMALL.override(*words, 'layers.cycle=["default", "bare"]'), seed=1).double()
    assert [layer.branches[1:2] for layer in model.stack] == [("recurrence",), ("feedforward",)] * 2
    first, third = (layer.branch("recurrence") for i, layer in enumerate(model.stack) if i % 2 == 0)
    assert (first.rank, third.rank) == (0, 1)
    same_in_pieces(model)
    seen: list[Tensor] = []
    third.out.register_forward_hook(lambda m, args, out: seen.append(args[0]))
    model(TOKENS)
    torch.testing.assert_close(seen[0], first.table(TOKENS)[..., 8:])


def test_a_part_knows_its_place() -> None:
    place = LayerInfo(3, kinds=("a", "b", "a", "b"))
    assert (place.num_layers, place.alike, place.alike.index(place.number)) == (4, (1, 3), 1)
    assert (LayerInfo(3).num_layers, LayerInfo(3).alike) == (3, (3,))
