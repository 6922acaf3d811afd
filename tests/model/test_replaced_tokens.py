"""A generator and what finds its tokens: one model here, two of the published library, with one loss."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from archwright import hf
from archwright.catalogue.parameter_counts import parameter_counts
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.model.build import detector_of
from archwright.model.model import Decoder
from archwright.model.replaced_tokens import ReplacedTokenDetector, drawn
from archwright.planning.cost import counts_of, flops_per_token
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load

transformers = pytest.importorskip("transformers")

NO_DROPOUT = [
    *(f"{at}residual.dropout=0.0" for at in ("", "generator.")),
    *(f"{at}attention.dropout=0.0" for at in ("", "generator.")),
    "embedding.dropout=0.0",
]
SIZES = [
    *("vocab_size=64", "dim=32", "num_layers=2", "context_length=16", "feedforward.hidden_dim=48"),
    *("attention.num_heads=4", "embedding.dim=24", "generator.num_layers=3", "generator.dim=16"),
    *("generator.attention.num_heads=2", "generator.feedforward.hidden_dim=40"),
]
FP32 = Precision("fp32", torch.device("cpu"))
MASK = 63


def small(*words: str) -> ModelSpec:
    return load("electra-small").override(*SIZES, *NO_DROPOUT).override(*words).resolved()


def made(*words: str) -> ReplacedTokenDetector:
    """Return a model in float64, with weights so large that a dropped detail shows."""
    model = build(small(*words), seed=1).double().use_kernel("eager")
    assert isinstance(model, ReplacedTokenDetector)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return model


def batch() -> Batch:
    """Return a batch with padding, token types, and a third of its tokens masked."""
    dice = torch.Generator().manual_seed(2)
    text = torch.randint(60, (6, 16), generator=dice)
    real = torch.ones(6, 16, dtype=torch.bool)
    real[1, 11:], real[4, 5:] = False, False
    chosen = (torch.rand(6, 16, generator=dice) < 0.3) & real
    draws = torch.where(chosen, torch.rand(6, 16, generator=dice), -1.0)
    types = (torch.arange(16) > 7).long().expand(6, 16)
    given = Inputs(
        text.masked_fill(chosen, MASK), padding_mask=real, token_type_ids=types, draws=draws
    )
    return Batch(given, text.masked_fill(~chosen, IGNORE))


def published(model: ReplacedTokenDetector) -> tuple[nn.Module, nn.Module]:
    """Return the generator and the model that finds its tokens as the library has them, in float64, with the same
    weights; and one table, positions and norm, as the published code shares them."""
    generator_spec = model.spec.generator_model
    assert generator_spec is not None
    alone = build(generator_spec).double()
    own = model.state_dict()
    alone.load_state_dict({n: own.get(f"generator.{n}", own.get(n)) for n in alone.state_dict()})
    return _theirs(alone, "ElectraForMaskedLM"), _theirs(
        detector_of(model), "ElectraForPreTraining"
    )


def _theirs(model: Decoder, architecture: str) -> nn.Module:
    family = hf.FAMILIES["electra"]
    assert family.architecture_of(model.spec) == architecture
    config = family.config(model.spec)
    cls = getattr(transformers, architecture)
    config |= {"pad_token_id": None}  # whose row would get no gradient
    theirs: nn.Module = cls(transformers.ElectraConfig(**config)).double().eval()
    tensors = {
        n: t
        for n, t in model.state_dict().items()
        if n != "head.weight" or not model.spec.head.tied
    }
    slots = family.slots(model.spec, tensors)
    held = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, slot in slots.items():
            slot.write(held[name], tensors)
    return theirs


def test_logits_are_those_of_the_published_classes() -> None:
    """Of the generator on the masked text, and of the other on that with drawn tokens."""
    model, given = made(), batch()
    theirs, real = published(model), given.inputs.padding_mask
    out = model(**given.inputs.given())
    around = {"attention_mask": real.long(), "token_type_ids": given.inputs.token_type_ids}
    first = theirs[0](input_ids=given.inputs.tokens, **around).logits
    second = theirs[1](input_ids=out.read, **around).logits
    torch.testing.assert_close(out.logits[real], first[real], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.replaced_logits[real], second[real], rtol=1e-9, atol=1e-9)
    drawn_places = given.inputs.draws >= 0
    assert out.read[~drawn_places].equal(given.inputs.tokens[~drawn_places])
    assert (out.read != given.inputs.tokens)[drawn_places].any()


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([2.0, -1.0, 0.5, float("-inf"), 1.0])
    number = 40_000
    draws = torch.arange(number)[None] / number
    found = drawn(torch.full((1, number), 9), logits.expand(1, number, 5), draws)
    counts = torch.bincount(found[0], minlength=5) / number
    torch.testing.assert_close(counts, logits.softmax(-1), atol=1e-4, rtol=0)
    left = drawn(torch.full((1, 4), 9), logits.expand(1, 4, 5), torch.full((1, 4), -1.0))
    assert left.tolist() == [[9] * 4]
    last = drawn(torch.zeros(1, 1, dtype=torch.long), logits.expand(1, 1, 5), torch.ones(1, 1))
    assert last.item() == 4


def test_padding_and_other_texts_change_nothing() -> None:
    model, given = made(), batch()
    out = model(**given.inputs.given())
    short = Inputs(
        given.inputs.tokens[1:2, :11],
        token_type_ids=given.inputs.token_type_ids[1:2, :11],
        draws=given.inputs.draws[1:2, :11],
    )
    alone = model(**short.given())
    assert alone.read.equal(out.read[1:2, :11])
    torch.testing.assert_close(alone.logits, out.logits[1:2, :11])
    torch.testing.assert_close(alone.replaced_logits, out.replaced_logits[1:2, :11])


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("embedding.dim=auto",),
        ("generator.dim=auto", "embedding.dim=auto", "embedding.project=table"),
        ("generator.head.tied=false", "layers.shared=true"),
    ],
)
def test_parameters_and_flops_are_counted(words: tuple[str, ...]) -> None:
    spec = small(*words)
    model = build(spec)
    assert parameter_counts(spec) == counts_of(spec)
    assert counts_of(spec).total == sum(p.numel() for p in model.parameters())
    model.use_kernel("eager").eval()
    tokens = torch.randint(64, (1, 16))
    counter = FlopCounterMode(display=False)
    with counter:
        model(tokens)
    assert flops_per_token(model, 16) == pytest.approx(3 * counter.get_total_flops() / 16, rel=0.02)


def test_it_is_written_without_its_generator(tmp_path: Path) -> None:
    model = build(small(), seed=3)
    with pytest.warns(UserWarning, match="without its generator"):
        assert hf.save(model, tmp_path / "out") == "electra"
    with pytest.warns(UserWarning, match="without its generator"):
        hf.save(model, tmp_path / "out")  # which is left as it is
    back = hf.load(tmp_path / "out")
    assert back.spec.generator.is_none
    tokens = torch.randint(64, (2, 16))
    expected = model.eval()(tokens).replaced_logits
    torch.testing.assert_close(back.model(tokens).logits[..., 0], expected)
    theirs = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(theirs(tokens).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("head.predicts=tokens",), "head.predicts"),
        (
            ("generator.head.predicts=replaced", "generator.head.tied=false"),
            "generator.head.predicts",
        ),
        (("generator.attention.mask.kind=causal",), "generator.attention.mask.kind"),
        (("generator.position.kind=sinusoidal",), "generator.position"),
        (("embedding.project=table",), "embedding.project"),
        (("sequence_head.kind=pooled",), "sequence_head.kind"),
        (("generator.attention.num_heads=3",), "generator.attention"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError) as caught:
        small(*words)
    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith(line)
