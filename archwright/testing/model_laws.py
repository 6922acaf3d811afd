"""Laws of every valid model composition. Each law is a function of a `Case`."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from archwright.catalogue.parameter_counts import parameter_counts
from archwright.losses import cross_entropy, pop_aux_losses
from archwright.model.build import build
from archwright.model.model import Decoder, Output
from archwright.optim.groups import without_role
from archwright.parts.masks import prefix_size
from archwright.parts.mixers import AttentionMixer, RecurrentMixer
from archwright.planning.cost import counted
from archwright.planning.trace import trace
from archwright.spec.errors import UserError
from archwright.testing.case import Case, close, spread
from archwright.testing.law import Broken, NotTried, reads_back

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
CAST = "compute in float32 or wider, and return y.to(x.dtype)"


def builds(case: Case) -> None:
    """A small model with the choice builds and runs on tokens."""
    case.read(case.built(), case.tokens())


def toml_returns(case: Case) -> None:
    """Writing the spec as TOML and reading it returns the same spec and hash, also for the resolved spec."""
    for spec in (case.spec, case.spec.resolved()):
        if reads_back(spec).hash() != spec.hash():
            raise Broken("what is read has another hash; use types that TOML has")


def shapes_and_dtypes(case: Case) -> None:
    """Logits have the shape [batch, length, vocab] and the dtype of the weights."""
    model, tokens = case.built(), case.tokens()
    vocabulary = int(case.spec.resolved().vocab_size)
    for x in (tokens, tokens[:, :1]):
        expected, shape = [*x.shape, vocabulary], [*case.read(model, x).logits.shape]
        if shape != expected:
            raise Broken(f"logits have shape {shape}; expected {expected}: [batch, length, vocab]")
    for name, dtype in DTYPES.items():
        try:
            logits_dtype = case.logits(model.to(dtype), tokens).dtype
        except RuntimeError as error:  # such as a matmul of two dtypes
            raise Broken(f"in {name}: {error}; {CAST}") from error
        if logits_dtype != dtype:
            raise Broken(f"logits of a {name} model are {logits_dtype}; {CAST}")


def shapes_on_meta(case: Case) -> None:
    """On the meta device all shapes are the same, and the parameter count equals the closed formula."""
    meta, real = case.built("meta"), case.built()
    shapes = [{n: [*p.shape] for n, p in m.named_parameters()} for m in (meta, real)]
    if shapes[0] != shapes[1]:
        name = next(n for n in {**shapes[1], **shapes[0]} if shapes[0].get(n) != shapes[1].get(n))
        raise Broken(f"{name} is {shapes[0].get(name)} there, and {shapes[1].get(name)} in memory")
    for name, tensor in (*meta.named_parameters(), *meta.named_buffers()):
        if not tensor.is_meta:
            raise Broken(
                f"{name} has memory; make tensors with torch, and fill them in reset_parameters"
            )
    tokens = case.tokens()
    with_memory, without = (
        case.logits(m, tokens.to(device)) for m, device in ((real, "cpu"), (meta, "meta"))
    )
    if with_memory.shape != without.shape:
        raise Broken(
            f"logits have shape {[*without.shape]} there, {[*with_memory.shape]} in memory"
        )
    expected, counts = parameter_counts(real.spec), counted(real)
    if expected is not None and counts != expected:  # external choices have no formula
        differing = [
            f"{part} have {number} parameters, and num_parameters says {expected.parts.get(part, 0)}"
            for part, number in counts.parts.items()
            if number != expected.parts.get(part, 0)
        ]
        raise Broken("; ".join(differing) or f"{counts} were found; num_parameters says {expected}")


def the_same_seed_gives_the_same_model(case: Case) -> None:
    """Two models with the same seed have the same weights and logits."""
    one, other = (case.built().eval() for _ in range(2))
    then = (
        "draw with torch's own functions in reset_parameters(), as nn.init does: these are seeded there, by the name "
        "of the module"
    )
    state = other.state_dict()
    for name, tensor in one.state_dict().items():
        if not torch.equal(tensor, state[name]):
            raise Broken(f"{name} differs; {then}")
    if not torch.equal(case.logits(one, case.tokens()), case.logits(other, case.tokens())):
        raise Broken(f"logits differ; {then}")


def nothing_is_drawn_outside_training(case: Case) -> None:
    """In evaluation, repeated forward passes give the same logits."""
    model, tokens = case.built().eval(), case.tokens()
    if not torch.equal(case.logits(model, tokens), case.logits(model, tokens)):
        raise Broken(
            "two passes differ; draw only where self.training, as in F.dropout(x, p, self.training)"
        )


def roles_are_stated(case: Case) -> None:
    """Parameters with two axes are in linear maps, embeddings, convolutions or expert stacks, or have a role."""
    for name in without_role(case.built()):
        raise Broken(
            f"{name} would be a matrix, which Muon makes orthogonal; name it in roles of its module: "
            f'roles = {{"{name.rpartition(".")[2]}": "vector"}}, or "matrix", or "kernel"'
        )


def trains(case: Case) -> None:
    """Every parameter has a finite gradient, in float32 and under bfloat16 autocast."""
    for is_autocast in (False, True):
        model = case.built().use_kernel(case.dice.choice(["sdpa", "blockwise"]))
        tokens = case.tokens()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            out = case.read(model, tokens)
        loss = _loss(model, out, tokens)
        loss.backward()
        where = "under bfloat16 autocast" if is_autocast else "in float32"
        if not loss.isfinite():
            raise Broken(
                f"the loss is {loss.item()} {where}; add a small eps to what is divided by"
            )
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                raise Broken(f"{name} has no gradient; use it in forward, or leave it out")
            if not parameter.grad.isfinite().all():
                raise Broken(
                    f"the gradient of {name} is not finite {where}; add a small eps to what is divided by"
                )


def every_parameter_learns(case: Case) -> None:
    """Every parameter has a nonzero gradient."""
    model, tokens = case.built(), case.tokens()
    _loss(model, case.read(model, tokens), tokens.roll(-1, 1)).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not parameter.grad.any():
            raise Broken(
                f"the gradient of {name} is zero; is it multiplied by zero, detached, or behind a function that is "
                "flat there?"
            )


def weights_return(case: Case) -> None:
    """Saving and loading the weights reproduces the logits bit for bit."""
    other = Case(case.spec, case.seed + 1).built().double().eval().use_kernel("eager")
    other.load_state_dict(case.model.state_dict())
    if not torch.equal(case.logits(other, case.tokens()), case.logits(case.model, case.tokens())):
        raise Broken(
            "logits differ; compute what follows from weights in forward, and keep nothing of them"
        )


def only_parameters_are_saved(case: Case) -> None:
    """The state dict contains only parameters."""
    model = case.built()
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in model.state_dict():
        if name not in names:
            raise Broken(
                f"{name} would be saved; register_buffer(..., persistent=False) keeps it out"
            )


def rows_do_not_meet(case: Case) -> None:
    """The logits of a sequence do not depend on the rest of the batch."""
    tokens = case.tokens()
    both, one = case.logits(case.model, tokens), case.logits(case.model, tokens[:1])
    close(
        both[:1], one, 1e-8, "logits of a row with another one beside it", "take no mean over rows"
    )


def nothing_sees_what_follows(case: Case) -> None:
    """No token depends on a later token, unless a mixer or its mask is declared non-causal. In float64, output i has no
    gradient to input j > i and does not change with it."""
    tokens, cut = case.tokens(), case.length // 2
    changed = tokens.clone()
    changed[:, cut:] = (tokens[:, cut:] + 1) % int(case.spec.resolved().vocab_size)
    before, after = (case.logits(case.model, x)[:, :cut] for x in (tokens, changed))
    leak = next(_leaks(case), "")
    if not leak and (before - after).abs().max() > 1e-8 * spread(before):
        leak = f"logits before token {cut} change with it"
    if case.causal and leak:
        raise Broken(
            f"{leak}; look only at tokens up to each, or say causal: ClassVar[bool] = False"
        )
    if not case.causal and not leak:
        raise Broken("no output depends on a later input; leave out causal = False")


def _leaks(case: Case) -> Iterator[str]:
    """Yield an error for each output with a gradient to a later input; none if there is an encoder or a generator."""
    if not case.spec.encoder.is_none or not case.spec.generator.is_none:
        return
    inputs: list[Tensor] = []

    def leaf(module: nn.Module, args: object, out: Tensor) -> Tensor:
        inputs.append(out.detach().requires_grad_())
        return inputs[-1]

    hook = case.model.get_submodule("embedding").register_forward_hook(leaf)
    out = case.model.hidden(case.tokens())
    hook.remove()
    weight = torch.randn(out.shape[-1], generator=torch.Generator().manual_seed(1)).double()
    for i in range(case.length - 1):
        (grad,) = torch.autograd.grad((out[:, i] @ weight).sum(), inputs[0], retain_graph=True)
        later = grad[:, i + 1 :].abs().amax((0, 2)).nonzero()
        if len(later):
            yield f"output {i} has a gradient to input {i + 1 + int(later[0])}"


def packed_is_alone(case: Case) -> None:
    """A sequence has the same logits unpacked and packed after another sequence."""
    wants(case, "segment_ids")
    tokens, length = case.tokens(), case.length
    if length < 2:
        return
    cut = case.dice.randrange(1, length)
    ids = (torch.arange(length)[None] >= cut).long()
    packed = case.logits(case.model, tokens[:1], segment_ids=ids)
    then = (
        "begin again where context.layout.index_or_range() is 0, or leave segment_ids out of takes"
    )
    first, second = tokens[:1, :cut], tokens[:1, cut:]
    unpacked = case.logits(case.model, first)
    close(packed[:, :cut], unpacked, 1e-8, "the first text of a packed row", then)
    unpacked = case.logits(case.model, second)
    close(packed[:, cut:], unpacked, 1e-8, "the second text of a packed row", then)


def padding_is_nothing(case: Case) -> None:
    """Padding on either side does not change the logits of a sequence, also at batch size 1."""
    wants(case, "padding_mask")
    tokens, length = case.tokens(), case.length
    if length < 2:
        return
    cut = case.dice.randrange(1, length)
    unpadded = case.logits(case.model, tokens[:1, :cut])
    then = "leave out tokens where context.layout.padding_mask is False, or padding_mask of takes"
    for left in (True, False):
        grid, real = tokens.clone(), torch.ones_like(tokens).bool()
        span = slice(length - cut, length) if left else slice(0, cut)
        grid[0], real[0] = 0, False
        grid[0, span], real[0, span] = tokens[0, :cut], True
        for rows in range(1, len(tokens) + 1):
            padded = case.logits(case.model, grid[:rows], padding_mask=real[:rows])
            close(padded[:1, span], unpadded, 1e-8, f"beside padding, {rows} rows", then)
        if len(tokens) > 1:
            unpadded_rows = case.logits(case.model, tokens[1:])
            close(padded[1:], unpadded_rows, 1e-8, "the row beside a padded one", then)


def wants(case: Case, name: str) -> None:
    """Raise `NotTried` if a mixer does not support the batch input `name`, or if there is an encoder."""
    if name not in case.takes:
        raise NotTried(f"it takes no {name}; batches that have some are refused")
    has_one_stack(case)


def has_one_stack(case: Case) -> None:
    if not case.spec.encoder.is_none:
        raise NotTried("tried of models without an encoder")


def cached_is_uncached(case: Case) -> None:
    """Reading a sequence in pieces with a cache gives the logits of one full pass."""
    has_cache(case)
    tokens, prefix = case.tokens(), longest_prefix(case)
    inputs: dict[str, Tensor] = {}
    if prefix == 1 and "segment_ids" in case.takes and case.dice.random() < 0.5:
        starts = [[int(case.dice.random() < 0.3) for _ in row] for row in tokens]
        inputs["segment_ids"] = torch.tensor(starts).cumsum(-1)
    read_in_pieces(case, lambda: pieces(case, tokens.shape[1], prefix), **inputs)


def read_in_pieces(case: Case, sizes: Callable[[], list[int]], **inputs: Tensor) -> None:
    """Compare passes over pieces of these sizes with one full pass, in float64 and in float32."""
    tokens = case.tokens()
    in_float32 = case.enlarged().float().use_kernel("sdpa")
    exact = case.model(tokens, **inputs).logits
    for model, tolerance in ((case.model, 1e-8), (in_float32, 1e-4)):
        expected = model(tokens, **inputs).logits
        # Some models amplify rounding errors: allow 5 times the error of a full float32 pass.
        rounding = (expected - exact).abs().max().item() / spread(exact)
        tolerance = max(tolerance, 5 * rounding)
        cache, parts, start = model.new_cache(), [], 0
        with torch.no_grad():
            for size in sizes():
                here = slice(start, start + size)
                in_piece = {name: values[:, here] for name, values in inputs.items()}
                parts.append(model(tokens[:, here], cache=cache, **in_piece).logits)
                start += size
        then = "go on from the state, and leave in it what the next token needs"
        close(torch.cat(parts, 1), expected, tolerance, "in pieces", then)


def cached_rows_of_different_lengths(case: Case) -> None:
    """Padded prompts continue with the logits of unpadded ones, at different lengths and at batch size 1."""
    has_cache(case)
    wants(case, "padding_mask")
    if case.length < 3:
        return
    if longest_prefix(case) > 1:
        raise NotTried("each row would have another prefix")
    prompt = case.length - 2
    sizes = [case.dice.randint(1, prompt) for _ in range(3)]
    _padded_prompts(case, sizes, [case.dice.random() < 0.5 for _ in sizes])
    for left in (True, False):
        _padded_prompts(case, [case.dice.randint(1, prompt)], [left])


def _padded_prompts(case: Case, sizes: list[int], left: list[bool]) -> None:
    """Read a batch of padded prompts, then two more tokens, and compare each row with an unpadded pass."""
    rows, prompt = len(sizes), case.length - 2
    tokens = case.tokens(rows)
    grid, real = torch.zeros(rows, prompt).long(), torch.zeros(rows, prompt).bool()
    for row, size in enumerate(sizes):
        span = slice(prompt - size, prompt) if left[row] else slice(0, size)
        grid[row, span], real[row, span] = tokens[row, :size], True
    cache = case.model.new_cache()
    with torch.no_grad():
        read = case.model(grid, padding_mask=real, cache=cache).logits
        written = []
        for step in range(2):
            new = torch.stack([tokens[row, size + step] for row, size in enumerate(sizes)])
            written.append(case.model(new[:, None], cache=cache).logits)
        for row, size in enumerate(sizes):
            expected = case.model(tokens[row : row + 1, : size + 2]).logits[0]
            logits = torch.cat((read[row][real[row]], torch.cat(written, 1)[row]))
            then = "let padding leave the state as it is"
            close(logits, expected, 1e-8, f"row {row} of {sizes}", then)


def has_cache(case: Case) -> None:
    """Raise `NotTried` if the model has an encoder or does not support a cache."""
    has_one_stack(case)
    try:
        case.model.new_cache()
    except UserError as why:
        raise NotTried("; ".join(why.lines)) from why


def longest_prefix(case: Case) -> int:
    """Return the minimum number of tokens of the first pass."""
    return min(case.length, max([1, *map(prefix_size, case.model.masks.values())]))


def pieces(case: Case, length: int, first: int) -> list[int]:
    """Split a length into random pieces, the first of at least `first` tokens."""
    sizes = [case.dice.randint(first, length)]
    while sum(sizes) < length:
        sizes.append(case.dice.choice([1, case.dice.randint(1, length - sum(sizes))]))
    return sizes


def costs_are_traced(case: Case) -> None:
    """A trace without data counts the FLOPs and activations of a real pass."""
    has_one_stack(case)
    model = build(case.spec)
    try:
        fake, real = (
            trace(model, "training", length=case.length, texts=2, kernel="eager", real=is_real)
            for is_real in (False, True)
        )
    except UserError as error:
        raise Broken("; ".join(error.lines)) from error
    # A real scan sums gradients of its pieces, outside of any part; its kept tensors are right within 6 %.
    scans = {
        f"layers.{name}"
        for layer in model.all_layers
        for name, mixer in layer.mixers().items()
        if isinstance(mixer, RecurrentMixer)
    }
    for phase in ("forward", "backward"):
        for sort in ("product", "leaf", "arithmetic"):
            sums = scans and (phase, sort) == ("backward", "arithmetic")
            without = {*scans, "other"} if sums else ()
            traced, counted = (of.total(sort, phase=phase, without=without) for of in (fake, real))
            if abs(traced - counted) > 1e-3 * counted:
                raise Broken(
                    f"{traced:,.0f} FLOPs ({sort}, {phase}) in a trace, {counted:,.0f} in a pass; results must not "
                    "depend on values that a trace does not have"
                )
    traced, counted = (float(sum(held.num_bytes for held in of.kept)) for of in (fake, real))
    if abs(traced - counted) > (0.1 if scans else 0.01) * counted:
        raise Broken(
            f"{traced:,.0f} bytes stay for the backward pass in a trace, {counted:,.0f} in a pass; give the leaf's "
            "formula all tensors that are kept"
        )


def state_bytes_are_stated(case: Case) -> None:
    """The state of a mixer has the size in bytes that state_bytes returns."""
    has_cache(case)
    model, length = case.built(), case.length
    cache = model.new_cache()
    case.read(model, case.tokens(1), cache=cache)
    for number, layer in enumerate(model.stack):
        for name, mixer in layer.mixers().items():
            if isinstance(mixer, AttentionMixer) or mixer.reads_state_of is not None:
                continue  # a KV cache has spare slots
            num_bytes = cache.states(number)[name].num_bytes
            stated = mixer.state_bytes(length, 4)
            if num_bytes != stated:
                raise Broken(
                    f"{num_bytes} bytes after {length} tokens, in float32; state_bytes says {stated}"
                )


def _loss(model: Decoder, out: Output, tokens: Tensor) -> Tensor:
    """Return a loss that depends on all outputs and auxiliary losses of the model."""
    loss = cross_entropy(out.logits, tokens, z_loss=1e-4).total + sum(
        pop_aux_losses(model).values()
    )
    if out.sequence_logits is not None:
        loss = loss + nn.functional.cross_entropy(out.sequence_logits.float(), tokens[:, 0] % 2)
    return loss
