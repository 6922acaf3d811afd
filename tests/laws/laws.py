"""The laws: what holds for every composition that no rule refuses. Each is a function of a `Case`; those that
`archwright check` tries, too, stand in `archwright/testing`."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
import tomli_w
import torch
from torch import Tensor, nn

from archwright.classic.spec.transient_global import TransientGlobalAttention
from archwright.model import build
from archwright.spec.cross_attention import CrossAttention
from archwright.spec.errors import UserError
from archwright.spec.feedforward import ChannelMix
from archwright.spec.fingerprint import differing
from archwright.spec.masks import Causal, Window
from archwright.spec.model_spec import ModelSpec
from archwright.spec.positions import DynamicNTK, LongRoPE, RoPE
from archwright.spec.recurrences import ShortConvolution
from archwright.spec.rules import RULES
from archwright.testing import NotTried
from archwright.testing.case import ROWS, close
from archwright.testing.case import Case as SmallModel
from archwright.testing.model_laws import (
    cached_is_uncached,
    cached_rows_of_different_lengths,
    packed_is_alone,
    padding_is_nothing,
    shapes_on_meta,
    toml_returns,
    trains,
    weights_return,
)
from tests.parts.test_masks import sees


class Case(SmallModel):
    """A composition and all chance in testing it, whose texts are so short that angles stay as they are."""

    @property
    def length(self) -> int:
        longest = super().length
        for layer in self.spec.layers_by_kind.values():
            if isinstance(layer.position, RoPE):
                scaling = layer.position.scaling
                if isinstance(scaling, DynamicNTK | LongRoPE) and scaling.original_length != "auto":
                    longest = min(longest, scaling.original_length)
        return longest

    def broken(self) -> list[str]:
        """Return the names of the rules that refuse the composition."""
        return [rule.name for rule in RULES if any(rule.check(self.spec))]


def obey(laws: Iterable[Callable[[Any], None]], case: Any, spec: ModelSpec, seed: int) -> None:
    """Try a composition against laws; what breaks one is shown as TOML."""
    for law in laws:
        try:
            law(case)
        except NotTried:
            continue
        except Exception as error:
            shown = f"{law.__name__}: {error}\n\nseed {seed}\n{tomli_w.dumps(differing(spec))}"
            raise AssertionError(shown) from error


def same_seed_same_weights(case: Case) -> None:
    """What two models of one seed have in common is equal."""
    change = case.dice.choice(["position.kind=none", "norm.kind=layer", "attention.softcap=20.0"])
    try:
        spec = case.spec.override(change)
        other = build(spec, seed=1)
    except UserError:
        return
    mine, theirs = build(case.spec, seed=1).state_dict(), other.state_dict()
    for name in mine.keys() & theirs.keys():
        if mine[name].shape == theirs[name].shape and "norm" not in name:
            assert torch.equal(mine[name], theirs[name]), name


def float32_is_near(case: Case) -> None:
    """Float32 differs from float64 by rounding, which may have a token choose other keys."""
    if case.chooses_keys:
        return
    expected = case.model(case.tokens()).logits
    found = case.enlarged().float().use_kernel("eager")(case.tokens()).logits
    close(found, expected, 5e-3, "float32")


def kernels_agree(case: Case) -> None:
    """Every kernel gives the reference's logits and gradients, with documents and padding."""
    tokens, given = case.tokens(), narrowing(case, ROWS, case.length)
    real = given.get("padding_mask", torch.ones_like(tokens).bool())

    def run(kernel: str) -> tuple[Tensor, list[Tensor]]:
        model = case.model.use_kernel(kernel)
        logits = case.logits(model, tokens, **given)[real]
        wanted = list(model.parameters())
        grads = torch.autograd.grad((logits.sin()).sum(), wanted, allow_unused=True)
        return logits, [torch.zeros(1) if g is None else g for g in grads]

    expected, gradients = run("eager")
    for kernel in ("sdpa", "blockwise"):
        found, theirs = run(kernel)
        close(found, expected, 1e-8, kernel)
        largest = max(g.abs().max().item() for g in gradients)
        for ours, other in zip(gradients, theirs, strict=True):
            error = (ours - other).abs().max().item()
            assert error <= 1e-7 * max(largest, 1e-3), f"gradient of {kernel}: off by {error:.3g}"
    with torch.no_grad():
        found = case.logits(case.model.use_kernel("flex"), tokens, **given)[real]
    case.model.use_kernel("eager")
    close(found, expected, 1e-8, "flex")


def narrowing(case: Case, rows: int, length: int) -> dict[str, Tensor]:
    """Draw documents, padding, both or neither."""
    given: dict[str, Tensor] = {}
    if case.dice.random() < 0.5:
        starts = [[int(case.dice.random() < 0.3) for _ in range(length)] for _ in range(rows)]
        given["segment_ids"] = torch.tensor(starts).cumsum(-1)
    if case.dice.random() < 0.5:
        pads = [case.dice.randrange(length) for _ in range(rows)]
        column = torch.arange(length)
        left = case.dice.random() < 0.5
        given["padding_mask"] = torch.stack(
            [column >= n if left else column < length - n for n in pads]
        )
    return given


def visibility(case: Case) -> None:
    """Output i depends on input j exactly where j reaches i through the masks of all layers; or only there, where
    tokens choose among what they may see."""
    length = case.length
    given = narrowing(case, ROWS, length)
    reaches = [reachable(case.model.spec, row, given, length) for row in range(ROWS)]
    inputs: list[Tensor] = []

    def leaf(module: nn.Module, args: object, out: Tensor) -> Tensor:
        inputs.append(out.detach().requires_grad_())
        return inputs[-1]

    model = case.enlarged(size=0.4).use_kernel("eager")
    hook = model.embedding.register_forward_hook(leaf)
    # The head is the same for all and may be flat, and what is large may saturate a clip or a gate.
    out = model.hidden(case.tokens(), **given)
    hook.remove()
    real = given.get("padding_mask", torch.ones(ROWS, length).bool())
    weight = torch.randn(out.shape[-1], generator=torch.Generator().manual_seed(1)).double()
    for row in range(ROWS):
        for i in range(out.shape[1]):
            if not real[row, i % length]:
                continue
            (grad,) = torch.autograd.grad(out[row, i] @ weight, inputs[0], retain_graph=True)
            touched = grad.abs().amax(-1) > 0
            expected = torch.zeros_like(touched)
            expected[row] = reaches[row][i]
            leaks = (touched & ~expected).nonzero().tolist()
            assert not leaks, f"output {row, i} sees inputs {leaks}, which its masks hide"
            blind = (expected & ~touched).nonzero().tolist()
            assert case.chooses_keys or not blind, f"output {row, i} does not see inputs {blind}"


def reachable(spec: ModelSpec, row: int, given: dict[str, Tensor], length: int) -> Tensor:
    """Compose the masks of all layers, each told by its sentence: [output, input]."""
    documents = given.get("segment_ids", torch.zeros(ROWS, length).long())[row].tolist()
    valid = given.get("padding_mask", torch.ones(ROWS, length).bool())[row].tolist()
    number = length
    reach = torch.eye(number, dtype=torch.bool)
    real = [n for n in range(number) if valid[n]]
    shift = torch.eye(number, dtype=torch.bool)
    for k, q in pairwise(real):
        shift[q, k] = documents[q] == documents[k]
    for i in range(spec.num_layers):
        step = torch.eye(number, dtype=torch.bool)
        for mixer in spec.layer(i).mixers.values():
            if isinstance(mixer, CrossAttention | ChannelMix):
                continue  # which reads another text; the token before, behind the others
            mask = getattr(mixer, "mask", Causal())  # most recurrences read all that came before
            if isinstance(mixer, ShortConvolution):
                mask = Window(size=mixer.width)
            for q in range(number):
                for k in range(number):
                    if valid[q] and valid[k] and documents[q] == documents[k]:
                        start = documents.index(documents[q])
                        at, seen = (sum(valid[start:n]) for n in (q, k))
                        heads = range(int(getattr(mixer, "num_heads", 1)))
                        long = sum(
                            v for v, d in zip(valid, documents, strict=True) if d == documents[q]
                        )
                        text = (len(heads), long, i + 1)
                        step[q, k] |= any(sees(mask, at, seen, head, *text) for head in heads)
                        if isinstance(mixer, TransientGlobalAttention):  # sums have all tokens
                            step[q, k] |= long >= mixer.block_size
        if isinstance(spec.layer(i).feedforward, ChannelMix):
            parallel = spec.layer(i).residual.kind == "parallel"
            step = step | shift if parallel else (shift.float() @ step.float()) > 0
        reach = (step.float() @ reach.float()) > 0
    return reach


def a_cache_is_refused_where_none_can_be(case: Case) -> None:
    """A cache can be had, or it is said why not."""
    forbidden = [mask for mask in case.model.masks.values() if mask.lookahead != 0]
    hidden = all(hasattr(mask, "size") for mask in forbidden)
    if hidden and case.model.can_cache:
        case.model.new_cache()
        return
    with pytest.raises(UserError, match="keeps nothing" if hidden else "see what follows"):
        case.model.new_cache()


LAWS: list[Callable[[Case], None]] = [
    shapes_on_meta,
    same_seed_same_weights,
    toml_returns,
    weights_return,
    trains,
    float32_is_near,
    kernels_agree,
    visibility,
    packed_is_alone,
    padding_is_nothing,
    a_cache_is_refused_where_none_can_be,
    cached_is_uncached,
    cached_rows_of_different_lengths,
]
