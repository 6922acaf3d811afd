"""Laws of mixers: long sequences, chunks, kernels, compilation and activation checkpointing."""

import torch
from torch import Tensor

from archwright.model.model import Decoder
from archwright.parts.context import Context
from archwright.parts.token_layout import token_layout
from archwright.testing.case import Case, close, spread
from archwright.testing.law import Broken, NotTried
from archwright.testing.model_laws import (
    has_cache,
    has_one_stack,
    longest_prefix,
    packed_is_alone,
    padding_is_nothing,
    read_in_pieces,
    wants,
)

FIRST_PIECES = (3, 259, 1)
"""Lengths of the first pieces of a long sequence: one exceeds 256 tokens, and none ends at a multiple of a chunk."""

REACH = 4
"""Tokens that a recurrent state must look back: more than most short convolutions do."""
NUM_CHUNKED = 70
"""Sequence length in tokens for tests of chunk sizes 1 and 3: more than a chunk of 64."""


def long_packed_is_alone(case: Case) -> None:
    """In a packed row of more than 256 tokens, each sequence has its unpacked logits."""
    wants(case, "segment_ids")
    packed_is_alone(case.long)


def long_padding_is_nothing(case: Case) -> None:
    """Padding a single sequence to more than 256 tokens, on either side, does not change its logits."""
    wants(case, "padding_mask")
    padding_is_nothing(case.long)


def long_cached_is_uncached(case: Case) -> None:
    """Reading more than 256 tokens in pieces with a cache gives the logits of one full pass."""
    has_cache(case)
    first = max(FIRST_PIECES[0], longest_prefix(case.long))
    sizes = [first, *FIRST_PIECES[1:]]
    if sum(sizes) >= case.long.length:
        raise NotTried(f"the first {first} tokens must be read in one piece")
    read_in_pieces(case.long, lambda: [*sizes, case.long.length - sum(sizes)])


def forgets_at_no_fixed_token(case: Case) -> None:
    """A token affects the outputs 4 to 7 tokens later at every position or at none."""
    spec = case.long.spec.override("attention.kind=none", "position.kind=none")
    long = Case(spec, case.seed, case.long.longest, rows=1)
    model, tokens = long.built().double().eval(), long.tokens()
    # Row 0 is the sequence. Every further row changes one token, at every fourth position, so that every boundary
    # between tokens is at most 3 tokens after a changed one.
    changed = torch.arange(0, tokens.shape[1] - 2 * REACH, REACH)
    rows = tokens.repeat(1 + len(changed), 1)
    numbers = torch.arange(len(changed))
    rows[1 + numbers, changed] = (rows[1 + numbers, changed] + 1) % int(long.spec.vocab_size)
    with torch.no_grad():
        logits = long.logits(model, rows)
    later = changed[:, None] + REACH + torch.arange(REACH)  # [rows, REACH]
    change = (logits[1 + numbers[:, None], later] - logits[0, later]).abs().amax((1, 2))
    reaches = change > 1e-12 * spread(logits)
    if reaches.any() and not reaches.all():
        first = int(changed[~reaches][0])
        raise Broken(
            f"outputs after token {first + REACH} do not depend on token {first}, unlike elsewhere; begin again only "
            "where context.layout.index_or_range() is 0"
        )


def chunk_size_changes_nothing(case: Case) -> None:
    """Chunks of 1 token, 3 tokens and more than the sequence give the same logits."""
    mixers = [m for m in case.long.model.mixers() if m.chunk_size is not None]
    if not mixers:
        raise NotTried("it computes no chunks")
    tokens = case.long.tokens(length=NUM_CHUNKED)
    expected = case.logits(case.long.model, tokens)
    for size in (1, 3, 2 * tokens.shape[1]):
        for mixer in mixers:
            mixer.chunk_size = size
        logits = case.logits(case.long.model, tokens)
        close(logits, expected, 1e-8, f"in chunks of {size}", "carry the state to the next chunk")


def kernels_agree(case: Case) -> None:
    """Every kernel gives the logits and gradients of the reference, with documents and padding."""
    model = case.enlarged()
    mixers = [mixer for mixer in model.mixers() if mixer.kernels()]
    if not mixers:
        raise NotTried("it has no kernels to choose from")
    tokens, length = case.tokens(), case.length
    real, inputs = torch.ones_like(tokens).bool(), dict[str, Tensor]()
    if "segment_ids" in case.takes:
        inputs["segment_ids"] = (torch.arange(length) >= length // 2).long().expand_as(tokens)
    if "padding_mask" in case.takes:
        real[0, : length // 3] = False
        inputs["padding_mask"] = real
    expected: list[Tensor] = []
    for number in range(max(len(mixer.kernels()) for mixer in mixers)):
        names = [mixer.kernels()[min(number, len(mixer.kernels()) - 1)] for mixer in mixers]
        for mixer, name in zip(mixers, names, strict=True):
            mixer.use_kernel(name)
        actual = _logits_and_gradients(model, case.logits(model, tokens, **inputs)[real])
        expected = expected or actual
        what = f"with the kernel {', '.join(dict.fromkeys(names))}"
        _compare(actual, expected, what, "compute the formula of the reference")


def checkpointing_changes_nothing(case: Case) -> None:
    """Activation checkpointing does not change logits or gradients."""
    expected: list[Tensor] = []
    for what in ("none", "full", "selective"):
        model = case.enlarged().checkpoint_activations(what)
        actual = _logits_and_gradients(model, case.logits(model, case.tokens()))
        expected = expected or actual
        what = f"with machine.activation_checkpointing={what}"
        _compare(actual, expected, what, "keep nothing of a pass in attributes")


def _logits_and_gradients(model: Decoder, logits: Tensor) -> list[Tensor]:
    loss, inputs = logits.sin().sum(), [*model.parameters()]
    gradients = torch.autograd.grad(loss, inputs, materialize_grads=True, allow_unused=True)
    return [logits.detach(), *gradients]


def _compare(actual: list[Tensor], expected: list[Tensor], what: str, then: str) -> None:
    """Compare logits, and gradients relative to the largest gradient.

    Raises:
        Broken: They differ by more than rounding.
    """
    close(actual[0], expected[0], 1e-8, f"logits {what}", then)
    largest = max([1e-3, *(g.abs().max().item() for g in expected[1:])])
    for gradient, reference in zip(actual[1:], expected[1:], strict=True):
        if (error := (gradient - reference).abs().max().item()) > 1e-7 * largest:
            raise Broken(f"a gradient {what}: off by {error:.3g}; {then}")


def compiles(case: Case) -> None:
    """A layer compiles to one graph with the outputs and gradients of eager execution."""
    has_one_stack(case)
    tokens = case.tokens()
    layer = next(case.model.stack)
    if hasattr(type(layer).forward, "__wrapped__"):
        raise NotTried("shapes are checked at each call, and a compiler cannot trace the checks")
    context = Context(token_layout(tokens), len(tokens), tokens=tokens)
    generator = torch.Generator().manual_seed(case.seed)
    x = torch.randn(*tokens.shape, case.spec.dim, generator=generator).double().requires_grad_()
    context.provide("embedding", x)
    layer.prepare(context)
    torch._dynamo.reset()
    outs = []
    try:
        for module in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
            out = module(x, context)
            outs.append((out, *torch.autograd.grad(out.sin().sum(), x)))
    except torch._dynamo.exc.TorchDynamoException as error:
        what, _, rest = str(error).strip().partition("\n")
        why = rest.strip().removeprefix("Explanation: ").partition("\n")[0]
        raise Broken(
            f"{what}: {why}; use operations of torch alone, and no numbers of tensors (.item(), if x.any())"
        ) from error
    finally:
        torch._dynamo.reset()
    for expected, actual in zip(*outs, strict=True):  # outputs, then gradients
        close(actual, expected, 1e-8, "a compiled layer", "change no tensor in place")
