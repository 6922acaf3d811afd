"""The laws: what holds for every composition that no rule refuses. Each is a function of a `Case`."""

import random
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import tomli_w
import torch
from torch import Tensor, nn

from archwright.catalogue.parameter_counts import parameter_counts
from archwright.losses import cross_entropy
from archwright.model import Decoder, build
from archwright.planning.counts import counted
from archwright.spec.attention import TransientGlobalAttention
from archwright.spec.cross_attention import CrossAttention
from archwright.spec.errors import UserError
from archwright.spec.fingerprint import differing
from archwright.spec.masks import Causal
from archwright.spec.merge import validated
from archwright.spec.model_spec import ModelSpec
from archwright.spec.positions import DynamicNTK, LongRoPE, RoPE
from archwright.spec.read import to_toml
from archwright.spec.rules import RULES
from archwright.training.step import sequence_nats
from tests.parts.test_masks import sees

ROWS = 2


@dataclass
class Case:
    """A composition and all chance in testing it."""

    spec: ModelSpec
    seed: int

    @cached_property
    def dice(self) -> random.Random:
        return random.Random(self.seed)

    @cached_property
    def model(self) -> Decoder:
        """The model in float64, with weights so large that a dropped detail shows."""
        return self.enlarged().use_kernel("eager")

    def enlarged(self, size: float | None = None) -> Decoder:
        """Build the model with weights of a size: smaller where no norm keeps numbers from exploding."""
        layers = self.spec.layers_by_kind.values()
        bare = any(
            layer.norm.kind == "none" or getattr(layer.residual, "skip_norm", "none") != "none"
            for layer in layers
        )
        size = size or (0.5 if bare else 1.5)
        return enlarged(build(self.spec, seed=self.seed), self.seed, size)

    @property
    def length(self) -> int:
        """Of a text: as long as the model allows, and its angles stay as they are."""
        longest = min(self.spec.context_length, 12)
        for layer in self.spec.layers_by_kind.values():
            if isinstance(layer.position, RoPE):
                scaling = layer.position.scaling
                if isinstance(scaling, DynamicNTK | LongRoPE) and scaling.original_length != "auto":
                    longest = min(longest, scaling.original_length)
        return longest

    def tokens(self, rows: int = ROWS, length: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (rows, self.length if length is None else length)
        return torch.randint(int(self.model.spec.vocab_size), shape, generator=generator)

    @property
    def chooses_keys(self) -> bool:
        """Whether values decide what some token sees: by how much more than nothing, no mask tells."""
        mixers = (
            m for layer in self.model.spec.layers_by_kind.values() for m in layer.mixers.values()
        )
        return any(mixer.chooses_keys for mixer in mixers)

    @property
    def causal(self) -> bool:
        return all(mask.lookahead == 0 for mask in self.model.masks.values())

    def broken(self) -> list[str]:
        """Return the names of the rules that refuse the composition."""
        return [rule.name for rule in RULES if any(rule.check(self.spec))]


def enlarged(model: nn.Module, seed: int, size: float) -> Decoder:
    """Give matrices N(0, size^2 / fan_in), and add 0.3 N(0, 1) to vectors; all in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(size * noise * parameter.shape[-1] ** -0.5)
    assert isinstance(model, Decoder)
    return model


def obey(laws: Iterable[Callable[[Any], None]], case: Any, spec: ModelSpec, seed: int) -> None:
    """Try a composition against laws; what breaks one is shown as TOML."""
    for law in laws:
        try:
            law(case)
        except Exception as error:
            shown = f"{law.__name__}: {error}\n\nseed {seed}\n{tomli_w.dumps(differing(spec))}"
            raise AssertionError(shown) from error


def spread(logits: Tensor) -> float:
    """Return the size of logits that errors are measured by."""
    return max(logits.double().std().item(), 1e-3) if logits.numel() > 1 else 1.0


def close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    error = (found.double() - expected.double()).abs().max().item() if found.numel() else 0.0
    assert error <= tolerance * spread(expected), f"{what}: off by {error:.3g}"


def logits_of(model: Decoder, tokens: Tensor, **given: Tensor) -> Tensor:
    """Return the logits of each token, those of further predicting streams behind the first's."""
    out = model(tokens, **given)
    further = () if out.further_logits is None else out.further_logits
    return torch.cat((out.logits, *further), -1)


def shapes_on_meta(case: Case) -> None:
    """A model on meta has the shapes of the real one, and as many parameters as the formulas say."""
    meta = build(case.spec, device="meta")
    real = build(case.spec)
    assert {n: p.shape for n, p in meta.named_parameters()} == {
        n: p.shape for n, p in real.named_parameters()
    }
    tokens = case.tokens()
    assert meta(tokens.to("meta")).logits.shape == real(tokens).logits.shape
    if (
        expected := parameter_counts(real.spec)
    ) is not None:  # that of a choice from outside is not known
        assert counted(real) == expected


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


def toml_returns(case: Case) -> None:
    """A spec written as TOML and read again is the same, with the same hash; so is a resolved one."""
    for spec in (case.spec, case.spec.resolved()):
        again = validated(ModelSpec, tomllib.loads(to_toml(spec)))
        assert again == spec
        assert again.hash() == spec.hash()


def weights_return(case: Case) -> None:
    """Weights that are saved and loaded give the same logits, bit for bit."""
    other = build(case.spec, seed=case.seed + 1).double().eval().use_kernel("eager")
    other.load_state_dict(case.model.state_dict())
    assert torch.equal(other(case.tokens()).logits, case.model(case.tokens()).logits)


def trains(case: Case) -> None:
    """Forward and backward are finite in float32 and under bfloat16 autocast, and reach every weight."""
    for narrow in (False, True):
        model = build(case.spec, seed=case.seed).use_kernel(case.dice.choice(["sdpa", "blockwise"]))
        tokens = case.tokens()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            out = model(tokens)
        loss = cross_entropy(out.logits, tokens, z_loss=1e-4).total
        if out.sequence_logits is not None:
            loss = loss + sequence_nats(out.sequence_logits, tokens[:, 0] % 2).mean()
        if out.further_logits is not None:
            loss = loss + out.further_logits.square().mean()
        loss.backward()
        assert loss.isfinite()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, f"no gradient: {name}"
            assert parameter.grad.isfinite().all(), f"not finite: {name}"


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
        logits = logits_of(model, tokens, **given)[real]
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
        found = logits_of(case.model.use_kernel("flex"), tokens, **given)[real]
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
        for i in range(out.shape[1]):  # of predicting streams, one behind the other
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
    """Compose the masks of all layers, each told by its sentence: [output, input]. Before each document stand global
    tokens, through which what they saw is seen. Outputs of predicting streams, stream by stream, reach what the text
    does that they see: what the token i places before sees, or the first."""
    documents = given.get("segment_ids", torch.zeros(ROWS, length).long())[row].tolist()
    valid = given.get("padding_mask", torch.ones(ROWS, length).bool())[row].tolist()
    first = [document for document in dict.fromkeys(documents) for _ in range(spec.global_tokens)]
    # What is no input stands before all texts, in any order of documents.
    order = sorted(range(len(first) + length), key=lambda n: (first + documents)[n])
    own = [order.index(n) for n in range(len(first), len(order))]
    documents = sorted(first + documents)
    valid = [([True] * len(first) + valid)[n] for n in order]
    number = len(order)
    reach = torch.eye(number, dtype=torch.bool)
    streams = [torch.zeros(number, number, dtype=torch.bool)] * spec.predicting_streams
    for i in range(spec.num_layers):
        step = torch.eye(number, dtype=torch.bool)
        for mixer in spec.layer(i).mixers.values():
            if isinstance(mixer, CrossAttention):
                continue  # which reads another text
            mask = getattr(mixer, "mask", Causal())  # a recurrence reads all that came before
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
        if streams and not spec.layer(i).attention.is_none:
            for missing, stream in enumerate(streams):
                first = [documents.index(document) for document in documents]
                real = [[n for n in range(first[q], q + 1) if valid[n]] for q in range(number)]
                like = [at[max(0, len(at) - 1 - missing)] if at else 0 for at in real]
                streams[missing] = stream | ((step[like].float() @ reach.float()) > 0)
        reach = (step.float() @ reach.float()) > 0
    outputs = torch.stack(streams or [reach])  # [streams, output, input]
    return outputs[:, own][:, :, own].flatten(0, 1)


def alone_or_in_company(case: Case) -> None:
    """A text gives the same logits by itself, beside padding, and packed behind another."""
    length = case.length
    if length < 2:
        return
    tokens = case.tokens()
    cut = case.dice.randrange(1, length)
    first, second = tokens[:1, :cut], tokens[:1, cut:]
    ids = torch.arange(length)[None] >= cut
    packed = logits_of(case.model, tokens[:1], segment_ids=ids.long())
    close(packed[:, :cut], logits_of(case.model, first), 1e-8, "first of a packed row")
    close(packed[:, cut:], logits_of(case.model, second), 1e-8, "second of a packed row")
    for left in (True, False):
        grid, real = torch.zeros_like(tokens), torch.ones_like(tokens).bool()
        where = slice(length - cut, length) if left else slice(0, cut)
        grid[0, where], grid[1], real[0] = first[0], tokens[1], False
        real[0, where] = True
        found = logits_of(case.model, grid, padding_mask=real)
        close(found[:1, where], logits_of(case.model, first), 1e-8, "beside padding")
        close(found[1:], logits_of(case.model, tokens[1:]), 1e-8, "the row beside a padded one")


def cached_is_uncached(case: Case) -> None:
    """A text read in pieces with a cache gives the logits of the whole; pieces of any length."""
    if not decodes(case):
        return
    tokens = case.tokens()
    given: dict[str, Tensor] = {}
    if longest_prefix(case) == 1 and case.dice.random() < 0.5:
        starts = [[int(case.dice.random() < 0.3) for _ in row] for row in tokens]
        given["segment_ids"] = torch.tensor(starts).cumsum(-1)
    narrow = case.enlarged().float().use_kernel("sdpa")
    prefix = longest_prefix(case)
    whole = case.model(tokens, **given).logits
    for model, tolerance in ((case.model, 1e-8), (narrow, 1e-4)):
        expected = model(tokens, **given).logits
        # Some amplify any rounding: no more may be asked than float32 itself gives.
        own_error = (expected - whole).abs().max().item() / spread(whole)
        tolerance = max(tolerance, 5 * own_error)
        cache, parts, start = model.new_cache(), [], 0
        with torch.no_grad():
            for size in pieces(case, tokens.shape[1], prefix):
                here = slice(start, start + size)
                of_piece = {name: values[:, here] for name, values in given.items()}
                parts.append(model(tokens[:, here], cache=cache, **of_piece).logits)
                start += size
        close(torch.cat(parts, 1), expected, tolerance, "in pieces")


def cached_rows_of_different_lengths(case: Case) -> None:
    """Prompts of different lengths, padded on either side, go on as each would by itself."""
    if not decodes(case) or case.length < 3:
        return
    rows, prompt = 3, case.length - 2
    tokens = case.tokens(rows)
    prefix = longest_prefix(case)
    if prefix > 1:
        return  # each row would have another prefix
    sizes = [case.dice.randint(1, prompt) for _ in range(rows)]
    grid, real = torch.zeros(rows, prompt).long(), torch.zeros(rows, prompt).bool()
    for row, size in enumerate(sizes):
        where = slice(prompt - size, prompt) if case.dice.random() < 0.5 else slice(0, size)
        grid[row, where], real[row, where] = tokens[row, :size], True
    cache = case.model.new_cache()
    with torch.no_grad():
        read = case.model(grid, padding_mask=real, cache=cache).logits
        written = []
        for step in range(2):
            new = torch.stack([tokens[row, size + step] for row, size in enumerate(sizes)])
            written.append(case.model(new[:, None], cache=cache).logits)
        for row, size in enumerate(sizes):
            expected = case.model(tokens[row : row + 1, : size + 2]).logits[0]
            found = torch.cat((read[row][real[row]], torch.cat(written, 1)[row]))
            close(found, expected, 1e-8, f"row {row} of {sizes}")


def decodes(case: Case) -> bool:
    """Say whether a cache can be had; where not, it must say why."""
    forbidden = [mask for mask in case.model.masks.values() if mask.lookahead != 0]
    hidden = all(hasattr(mask, "size") for mask in forbidden)
    if hidden and case.model.can_cache:
        return True
    with pytest.raises(UserError, match="keeps nothing" if hidden else "see what follows"):
        case.model.new_cache()
    return False


def longest_prefix(case: Case) -> int:
    """Return how many tokens must come at once."""
    sizes = [int(m.size) for m in case.model.masks.values() if m.lookahead != 0]
    return min([case.length, max(sizes, default=1)])


def pieces(case: Case, length: int, first: int) -> list[int]:
    """Cut a length into pieces, the first of them at least `first` long."""
    sizes = [case.dice.randint(first, length)]
    while sum(sizes) < length:
        sizes.append(case.dice.choice([1, case.dice.randint(1, length - sum(sizes))]))
    return sizes


LAWS: list[Callable[[Case], None]] = [
    shapes_on_meta,
    same_seed_same_weights,
    toml_returns,
    weights_return,
    trains,
    float32_is_near,
    kernels_agree,
    visibility,
    alone_or_in_company,
    cached_is_uncached,
    cached_rows_of_different_lengths,
]
