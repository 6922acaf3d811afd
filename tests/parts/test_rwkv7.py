"""RWKV-7's time mix and channel mix: formulas by hand, initial values, splits by heads, and all laws."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.model import build
from archwright.model.model import Layer
from archwright.optim.groups import roles
from archwright.parts.context import Context
from archwright.parts.feedforward import ChannelMix
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.scale.cuts import cut_axes, own_part, share_sizes, shared_branches
from archwright.spec import feedforward
from archwright.spec.model_spec import ModelSpec
from archwright.spec.recurrences import RWKV7
from archwright.testing import check

DIM = 8
WORDS = (
    *("attention.kind=none", "position.kind=none", "recurrence.kind=rwkv7"),
    *("recurrence.num_heads=2", "feedforward.kind=channel_mix"),
)


def spec_of(*words: str) -> ModelSpec:
    base = ModelSpec(dim=DIM, num_layers=3, vocab_size=16, context_length=24)
    return base.override(*WORDS).override(*words)


def layers(*words: str) -> list[Layer]:
    """Return layers whose parameters all differ from their initial values."""
    model = build(spec_of(*words), seed=1).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(
                parameter.shape, dtype=torch.float64, generator=generator
            )
    return [*model.stack]


def drawn(length: int = 9, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("receptance", [False, True])
def test_channel_mix_is_the_formula(receptance: bool) -> None:
    part: Any = ChannelMix(
        feedforward.ChannelMix(hidden_dim=24, receptance=receptance), DIM, LayerInfo()
    ).double()
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    x = drawn()
    segments = (torch.arange(9) >= 4).long().expand(2, -1)
    context = Context(token_layout(segments, segment_ids=segments), 2)
    before = torch.cat((torch.zeros(2, 1, DIM), x[:, :-1]), 1)
    before[:, 4] = 0
    mixed = [x * (1 - share) + before * share for share in part.shares]
    expected = F.linear(F.relu(F.linear(mixed[0], part.key.weight)) ** 2, part.value.weight)
    if receptance:
        expected = expected * F.linear(mixed[1], part.receptance.weight).sigmoid()
    torch.testing.assert_close(part(x, context), expected)


def test_later_layers_mix_their_values_with_those_of_the_first() -> None:
    """A layer with a share of 1 writes the first layer's values, and depends on its own not at all."""
    first, second, _ = layers()
    mixer: Any = second.branch("recurrence")
    x, context = drawn(), Context.alone(drawn())
    first.branch("recurrence")(x, context)
    with torch.no_grad():
        mixer.share_bias.fill_(100.0)
        y = mixer(x, context)
        mixer.value.weight.zero_()
        torch.testing.assert_close(mixer(x, context), y)
        mixer.share_bias.fill_(-100.0)
        mixer.share[1].weight.zero_()
        other = Context.alone(x)
        first.branch("recurrence")(2 * drawn().flip(1), other)
        torch.testing.assert_close(mixer(x, context), mixer(x, other))


def test_initial_values_are_those_of_the_published_code() -> None:
    model = build(spec_of("dim=12", "recurrence.num_heads=3"), seed=0)
    for number, layer in enumerate(model.stack):
        mixer: Any = layer.branch("recurrence")
        depth, left = number / 2, 1 - number / 3
        for n in range(12):
            wave = (n % 4 - 1.5) / 1.5
            wave *= abs(wave)
            assert mixer.decay_bias[n].item() == pytest.approx(
                -6 + 6 * (n / 11) ** (1 + depth**0.3) + 0.5 + 2.5 * wave, abs=1e-5
            )
            line = n / 11 - 0.5
            assert mixer.rate_bias[n].item() == pytest.approx(
                -0.19 + 0.3 * wave + 0.4 * line, abs=1e-6
            )
            assert mixer.key_scale[n].item() == pytest.approx(0.71 - 0.1 * line, abs=1e-6)
            assert mixer.shares[1, n].item() == pytest.approx(
                1 - (n / 12) ** (0.9 * left), abs=1e-6
            )
            if number:
                assert mixer.share_bias[n].item() == pytest.approx(0.73 - 0.4 * line, abs=1e-6)
            mix: Any = layer.branch("feedforward")
            assert mix.shares[0, n].item() == pytest.approx(1 - (n / 12) ** (left**4), abs=1e-6)
        assert mixer.norm.weight.unique().item() == pytest.approx(((number + 1) / 3) ** 0.7)
        # The map of keys starts ten times smaller.
        assert 5 < (mixer.receptance.weight.std() / mixer.key.weight.std()).item() < 20


def test_the_first_layer_lacks_a_share_and_shares_are_no_matrices() -> None:
    model = build(spec_of(), device="meta")
    lengths = [len([*layer.branch("recurrence").parameters()]) for layer in model.stack]
    assert lengths == [lengths[1] - 3, lengths[1], lengths[1]]
    by_name = roles(model)
    assert all(by_name[name] == "vector" for name in by_name if name.endswith(("shares", "bonus")))


def test_ranks_that_split_the_heads_add_up() -> None:
    """Values of the first layer are split like the heads."""
    whole, parts = layers(), [layers(), layers()]
    model = build(spec_of(), device="meta")
    assert len(shared_branches(model)) == 6
    x, outs = drawn(), []
    for rank, own in enumerate(parts):
        context, out = Context.alone(x), []
        for layer in own:
            for name in ("recurrence", "feedforward"):
                part = layer.branch(name)
                for tensor, axis in dict(cut_axes(part)).items():
                    tensor.data = own_part(tensor.data, axis, 2, rank)
                share_sizes(part, 2)
                out.append(part(x, context))
        outs.append(out)
    context = Context.alone(x)
    expected = [
        layer.branch(name)(x, context) for layer in whole for name in ("recurrence", "feedforward")
    ]
    for a, b, y in zip(*outs, expected, strict=True):
        torch.testing.assert_close(a + b, y)


def test_auto_sizes_are_those_of_the_published_model() -> None:
    sizes = {"num_heads": 32, "head_dim": 64, "decay_rank": 96, "rate_rank": 96}
    numbers = RWKV7().numbers(ModelSpec(dim=2048).sizes)
    assert numbers == sizes | {"value_rank": 64, "gate_rank": 256}


@pytest.mark.slow
@pytest.mark.parametrize("choice", [RWKV7, feedforward.ChannelMix])
def test_all_laws_hold(choice: Any) -> None:
    checked = check(choice)
    assert checked.good, [f for f in checked.findings if f.state == "broken"]
