"""Every family beside its published implementation: logits, gradients, and back again."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright import hf
from archwright.hf.configs import read_config
from archwright.hf.family import Family
from archwright.hf.loading import _aliases, tensors_of
from archwright.hf.verifying import TOLERANCE
from archwright.hf.weight_map import Fixed
from archwright.hf.weights_reader import opened
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.model.model import Decoder
from archwright.parts.mixers import RecurrentMixer
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from tests.hf.library import (
    ENTRIES,
    OUTSIDE,
    batch,
    build,
    inputs,
    logits,
    own_logits,
    own_loss,
    randomise,
    reopen,
    save,
    sines,
    transformers,
)

REFUSED = {
    "gemma3n": "four parallel streams are not here",
    "gemma3n_kv_shared": "four parallel streams are not here",
    "jetmoe": "mixtures of attention heads are not here",
    "diffllama": "differential attention is not here",
    "longcat_flash": "experts that skip a pair of layers are not here",
    "glm_moe_dsa": "keys chosen by an indexer are not here",
    "deepseek_v32": "keys chosen by an indexer are not here",
    "deepseek_v4": "compressed attention and hyper-connections are not here",
    "doge": "masks that depend on values are not here",
}
"""What this package does not run, and says so."""


@dataclass
class Pair:
    """A published model, the same model here, and where it was read from."""

    theirs: nn.Module
    ours: hf.Loaded
    folder: Path
    tokens: Tensor
    real: Tensor


@pytest.fixture(scope="module", params=[name for name in ENTRIES if name not in REFUSED])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    theirs = randomise(build(request.param))
    folder = save(theirs, tmp_path_factory.mktemp(request.param))
    return Pair(theirs, hf.load(folder), folder, *batch(theirs))


def noise(pair: Pair) -> float:
    """Return the largest rounding error of float32 in our logits, against float64."""
    models = (pair.ours.model, copy.deepcopy(pair.ours.model).double())
    with torch.no_grad():
        single, double = (own_logits(m, pair.tokens, pair.real)[pair.real] for m in models)
    return float((single - double).abs().max())


@pytest.mark.sampled(fast=4)
def test_logits_are_those_of_the_published_implementation(pair: Pair) -> None:
    with torch.no_grad():
        theirs = logits(pair.theirs, pair.tokens, pair.real)[pair.real]
        ours = own_logits(pair.ours.model, pair.tokens, pair.real)[pair.real]
    assert 0.1 < theirs.std() < 8.0
    difference = float((ours - theirs).abs().max())
    if difference > 2e-5:
        # The norm of a recurrence's output enlarges their rounding errors at a few tokens with small values.
        is_recurrent = any(isinstance(m, RecurrentMixer) for m in pair.ours.model.mixers())
        typical = (ours - theirs).square().mean().sqrt() / theirs.std()
        assert difference <= 3 * noise(pair) or (is_recurrent and typical <= 2e-5)


@pytest.mark.sampled(fast=4)
def test_padding_on_the_left_gives_the_logits_of_the_text_alone(pair: Pair) -> None:
    model, text = pair.ours.model, pair.tokens[:1, :30]
    padded = F.pad(text, (7, 0), value=5)
    real = torch.arange(37)[None] >= 7
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):  # whose source alone is padded
            alone = model(text, text).logits
            beside = model(padded, text, padding_mask=real).logits
        else:
            alone = model(text).logits
            beside = model(padded, padding_mask=real).logits[:, 7:]
    torch.testing.assert_close(beside, alone, atol=2e-5, rtol=1e-5)


@pytest.mark.sampled(fast=4)
def test_gradients_are_those_of_the_published_implementation(pair: Pair, tmp_path: Path) -> None:
    labels = pair.tokens.masked_fill(~pair.real, -100)
    theirs = pair.theirs
    reversible = theirs.config.model_type == "reformer"  # which is trained in training mode alone
    finds_replaced = "PreTraining" in type(theirs).__name__  # where labels are 0 and 1
    if finds_replaced:
        labels = labels.remainder(2).masked_fill(~pair.real, -100)
    loss = theirs.train(reversible)(**inputs(theirs, pair.tokens, pair.real), labels=labels).loss
    loss.backward()
    theirs.eval()
    ours = pair.ours.model
    # The loss of these is of the label at the token itself.
    fills_in = theirs.config.model_type == "xlnet" or "MaskedLM" in type(theirs).__name__
    direct = fills_in or finds_replaced or isinstance(ours, EncoderDecoder)
    shifted = 0 if direct else 1
    found = own_logits(ours, pair.tokens, pair.real)
    found = F.pad(found, (1, 0)) if finds_replaced else found
    found = found[:, : found.shape[1] - shifted].flatten(0, 1)
    own = F.cross_entropy(found, labels[:, shifted:].flatten())
    own.backward()
    torch.testing.assert_close(own, loss, atol=1e-5, rtol=1e-5)
    expected = gradients(pair, tmp_path)
    largest = max(float(g.norm()) for g in expected.values())
    for name, parameter in ours.named_parameters():
        if name in expected:
            grad = parameter.grad
            assert grad is not None, name
            distance = float((grad - expected[name]).norm())
            # What cancels out in a softmax, such as the bias of keys, is rounding alone.
            assert distance <= 1e-3 * float(expected[name].norm()) + 1e-6 * largest, name


def gradients(pair: Pair, folder: Path) -> dict[str, Tensor]:
    """Return the library's gradients under our names: written and read as if they were weights."""
    theirs = pair.theirs
    weights = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    save(theirs, folder)
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            p.copy_(weights[name])
    mine = {name: torch.zeros_like(t) for name, t in tensors_of(pair.ours.model).items()}
    family = hf.FAMILIES[pair.ours.family]
    buffers = {name for name, _ in theirs.named_buffers()}  # which have no gradients
    with opened(folder) as store:
        stored, family = dict(_aliases(family, store)), family.as_stored(store.shapes)
        for name, slot in family.slots(pair.ours.spec, mine).items():
            if name in buffers:
                mine = {ours: tensor for ours, tensor in mine.items() if ours not in slot.ours}
            elif not isinstance(slot, Fixed):
                slot.read(store.read(stored[name]), mine)
    parameters = dict(pair.ours.model.named_parameters())
    return {name: tensor for name, tensor in mine.items() if name in parameters}


@pytest.mark.sampled(fast=4)
def test_written_and_read_by_the_library_it_is_the_same(pair: Pair, tmp_path: Path) -> None:
    family = hf.save(pair.ours.model, tmp_path / "out")
    assert family == pair.theirs.config.model_type
    (architecture,) = read_config(tmp_path / "out")["architectures"]
    assert issubclass(type(pair.theirs), getattr(transformers, architecture))
    back, wrong = reopen(tmp_path / "out", pair.theirs)
    assert not wrong
    with torch.no_grad():
        before, after = (logits(m, pair.tokens, pair.real) for m in (pair.theirs, back))
    torch.testing.assert_close(after[pair.real], before[pair.real], atol=2e-5, rtol=1e-5)


def test_hybrids_are_verified(tmp_path: Path) -> None:
    """The norm of a recurrence, to which the class applies the gate, is not called the first to diverge."""
    certificate = hf.verify(save(randomise(build("olmo_hybrid")), tmp_path / "olmo"))
    assert certificate.agrees
    assert certificate.comparisons[0].first is None  # in float32
    certificate = hf.verify(save(randomise(build("qwen3_next")), tmp_path / "qwen"))
    assert certificate.comparisons[0].relative > TOLERANCE  # by rounding
    assert certificate.agrees


def test_padded_and_packed_texts_have_the_logits_of_each_alone(tmp_path: Path) -> None:
    """Without kernels for CUDA the library cannot pack texts, so it reads each text by itself."""
    theirs = randomise(build("qwen3_next", max_position_embeddings=256))
    ours = hf.load(save(theirs, tmp_path)).model
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(4, 128, (1, n), generator=generator) for n in (65, 30)]
    padded = torch.cat((texts[0], F.pad(texts[1], (35, 0), value=5)))
    real = torch.ones(2, 65, dtype=torch.bool)
    real[1, :35] = False
    segments = torch.tensor([[0] * 65 + [1] * 30])
    with torch.no_grad():
        alone = [logits(theirs, text, torch.ones_like(text, dtype=torch.bool)) for text in texts]
        beside = ours(padded, padding_mask=real).logits
        packed = ours(torch.cat(texts, 1), segment_ids=segments).logits
    for found in ((beside[:1], beside[1:, 35:]), packed.split((65, 30), 1)):
        for logits_found, expected in zip(found, alone, strict=True):
            # Rounding errors of the library's logits are 3e-5 of their spread.
            assert (logits_found - expected).square().mean().sqrt() <= 1e-4 * expected.std()


@pytest.mark.parametrize("heads", [4, 6])
def test_steeper_slopes_are_those_of_the_config(
    heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPT-7B-StoryWriter was trained with an exponent of 16. The library has the formula, but always asks it for 8."""
    from transformers.models.mpt import modeling_mpt

    slopes = {"alibi": True, "alibi_bias_max": 16, "clip_qkv": 1.5}
    theirs = randomise(build("mpt", d_model=12 * heads, n_heads=heads, attn_config=slopes))
    ours = hf.load(save(theirs, tmp_path / "in"))
    tokens, real = batch(theirs)

    def apart() -> float:
        with torch.no_grad():
            found = ours.model(tokens, padding_mask=real).logits[real]
            return float((found - logits(theirs, tokens, real)[real]).abs().max())

    assert apart() > 0.1
    formula = modeling_mpt.build_mpt_alibi_tensor
    asked = lambda self, heads, length, device: formula(heads, length, 16, device)  # noqa: E731
    monkeypatch.setattr(modeling_mpt.MptModel, "build_mpt_alibi_tensor", asked)
    assert apart() < 2e-5
    hf.save(ours.model, tmp_path / "out")
    assert hf.load(tmp_path / "out").spec.position == ours.spec.position


@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_here_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    folder = save(build(name), tmp_path)
    with pytest.raises(UserError, match=ENTRIES[name]["model_type"]) as refused:
        hf.load(folder)
    assert len(refused.value.lines) == 1


@pytest.mark.sampled(fast=8)
@pytest.mark.parametrize("name", sorted({*hf.FAMILIES} - OUTSIDE))
def test_defaults_are_those_of_the_class(name: str) -> None:
    """A config.json may leave out whatever is the default of its class."""
    from transformers import AutoConfig

    family = hf.FAMILIES[name]
    assert error_lines(family, {}) == error_lines(family, AutoConfig.for_model(name).to_dict())


def error_lines(family: Family, config: dict[str, Any]) -> ModelSpec | tuple[str, ...]:
    """Return the spec of a config, or why there is none, as some defaults are not here."""
    try:
        return family.spec(config)
    except UserError as refused:
        return refused.lines


TRAINED: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {},
    "gemma2": {},
    "olmo2": {},
    "cohere": {},
    "bloom": {},
    "deepseek_v3": {},
    "gpt_oss": {"output_router_logits": True},
    "mixtral": {"output_router_logits": True},
    "qwen2_moe": {"output_router_logits": True, "norm_topk_prob": True},
    "olmoe": {"output_router_logits": True, "router_aux_loss_coef": 0.1},
    "granitemoe": {"output_router_logits": True},
    "bart": {},
    "mbart": {},
    "marian_apart": {},
    "pegasus": {},
    "m2m_100": {},
    "fsmt": {},
    "t5gemma": {},
    "bert": {},
    "albert": {},
    "electra_factored": {},
    "electra_detector": {},
    "deberta": {},
    "deberta_v3": {},
}
"""One model of each kind of block, and the auxiliary loss of those whose library has one."""


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("name", TRAINED)
def test_twenty_steps_of_adamw_have_the_same_losses(name: str, tmp_path: Path) -> None:
    changes = TRAINED[name]
    theirs = randomise(build(name, **changes))
    hold_still(theirs)
    ours = hf.load(save(theirs, tmp_path)).model
    tokens, _ = batch(theirs)
    ours.train(bool(changes))  # only then are mixtures asked for their auxiliary loss
    found = [steps(theirs, tokens), steps(ours, tokens)]
    assert found[0][-1] < found[0][0]
    torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(found[0]), atol=1e-4, rtol=0)


def hold_still(theirs: nn.Module) -> None:
    """Take away what one of the two does not train: a bias of logits that is no parameter of the library, and
    tables of sines that are some."""
    for name, buffer in theirs.named_buffers():
        if name == "final_logits_bias":
            buffer.zero_()
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in sines(theirs))


def steps(model: nn.Module, tokens: Tensor, lr: float = 1e-3) -> list[float]:
    """Return the losses of twenty steps."""
    from archwright.losses import pop_aux_losses

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    losses = []
    everything = torch.ones_like(tokens, dtype=torch.bool)
    for _ in range(20):
        if isinstance(model, EncoderDecoder):
            loss = own_loss(model, tokens, tokens, everything) + sum(pop_aux_losses(model).values())
        elif isinstance(model, Decoder):
            ahead = 0 if model.spec.is_bidirectional else 1  # masked tokens are said where they are
            out = model(tokens).logits[:, : tokens.shape[1] - ahead].flatten(0, 1)
            labels = tokens
            if model.spec.head.predicts == "replaced":
                out, labels = F.pad(out, (1, 0)), tokens % 2
            loss = F.cross_entropy(out, labels[:, ahead:].flatten()) + sum(
                pop_aux_losses(model).values()
            )
        else:
            labels = tokens % 2 if "PreTraining" in type(model).__name__ else tokens
            loss = model(**inputs(model, tokens, everything), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
