"""Is a folder computed here as `transformers` computes it? A certificate of figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.hf.configs import read_config, text_config
from archwright.hf.families import FAMILIES
from archwright.hf.loading import Loaded, load
from archwright.hf.multimodal import own_name
from archwright.spec.errors import UserError
from archwright.text.json_table import first_line
from archwright.text.selfcheck import PROBE

TOKENS = 64
"""Length of the texts that are compared, or the model's own if that is shorter."""
PADDING = 9
"""Tokens of padding at the end of one of them."""
TOLERANCE = 1e-4
"""Difference of two float32 computations, over the spread of the logits, up to which they agree."""
ROUNDING = 1.5
"""How many times theirs our rounding error in bfloat16 may be."""
DIVERGES = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Relative difference from which on a component diverges."""


@dataclass(frozen=True)
class Comparison:
    """Two computations of one model, at one precision, over all real tokens."""

    dtype: str
    max_difference: float
    """Largest difference of two logits."""
    relative: float
    """The same over the standard deviation of the logits."""
    divergence: float
    """Mean KL divergence of the distributions of the next token, in nats."""
    rounding: float
    """Our distance from their float32 logits over theirs, both root mean squares; nan in float32."""
    top_1: float
    """Share of tokens with the same most likely next token."""
    first: str | None
    """The first component whose output differs; None where none does."""
    agrees: bool
    """Whether the logits are the same within rounding."""


@dataclass(frozen=True)
class Certificate:
    """How a folder was compared, and what came of it."""

    family: str
    architecture: str
    transformers: str
    torch: str
    comparisons: tuple[Comparison, ...]
    same_ids: bool
    """Whether a text has the same ids in both; what is put around it aside."""
    text: str
    """How a text is tokenized by both, in words."""

    @property
    def agrees(self) -> bool:
        """Whether all comparisons agree, and the ids of a text are the same."""
        return self.same_ids and all(comparison.agrees for comparison in self.comparisons)


def verify(folder: str | Path) -> Certificate:
    """Compare a folder's logits here and in `transformers`, in float32 and bfloat16, on random tokens, with
    padding at the end of one text; and the ids of a text.

    Raises:
        UserError: `transformers` is not installed or cannot read the folder, or what `load` refuses.
    """
    try:
        import transformers
    except ImportError:
        raise UserError(
            "verify compares with transformers, which is not installed: pip install 'archwright[verify]'"
        ) from None
    comparisons, exact = [], None
    for dtype in DIVERGES:
        own = load(folder, dtype=dtype)
        comparison, logits = _compare(own, _theirs(folder, own, dtype), dtype, exact)
        comparisons.append(comparison)
        exact = logits if exact is None else exact
    family = FAMILIES[own.family]
    return Certificate(
        own.family,
        family.architecture_of(own.spec),
        transformers.__version__,
        torch.__version__,
        tuple(comparisons),
        *_text(folder, own),
    )


def _text(folder: str | Path, own: Loaded) -> tuple[bool, str]:
    """Return whether a text has the same ids in both, and in words how it is tokenized."""
    from transformers import AutoTokenizer

    tokenizer = own.tokenizer
    if tokenizer is None:
        return True, "no tokenizer that is read here"
    # In ASCII: the classes of transformers 5 leave out the normaliser of other letters that some files have.
    text = "".join(
        char for char in PROBE if char.isascii() and (char.isprintable() or char == "\n")
    )
    for name in tokenizer.special_ids:  # ids there, text here
        text = text.replace(name, "")
    try:
        theirs: list[int] = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )(text).input_ids
    except Exception as error:  # of many kinds
        return False, f"transformers cannot read the tokenizer: {first_line(error)}"
    ours = tokenizer.encode(text).tolist()
    starts = [i for i in range(len(theirs)) if theirs[i : i + len(ours)] == ours]
    if not starts:
        return False, f"other ids: {len(ours)} here, {len(theirs)} in transformers"
    around = theirs[: starts[0]], theirs[starts[0] + len(ours) :]
    has_source = own.spec.encoder_model is not None
    return True, tokenizer.otherwise(around, has_source=has_source) or "the same ids"


def _theirs(folder: str | Path, own: Loaded, dtype: torch.dtype) -> nn.Module:
    import transformers
    from transformers import logging

    auto: Any = transformers.AutoModelForCausalLM
    if text_config(read_config(Path(folder)))[1] is not None:
        auto = transformers.AutoModelForImageTextToText
    if own.spec.encoder_model is not None:
        auto = transformers.AutoModelForSeq2SeqLM
    architecture = FAMILIES[own.family].architecture_of(own.spec)
    if "MaskedLM" in architecture:
        auto = transformers.AutoModelForMaskedLM
    elif "PreTraining" in architecture:
        auto = transformers.AutoModelForPreTraining
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model: nn.Module = auto.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # of many kinds
        raise UserError(f"{folder}: transformers cannot read it: {first_line(error)}") from None
    return model.eval()


@torch.inference_mode()
def _compare(
    own: Loaded, theirs: nn.Module, dtype: torch.dtype, exact: Tensor | None
) -> tuple[Comparison, Tensor]:
    """Return the comparison, and their logits; `exact` are theirs in float32."""
    # Two random texts, the second one padded.
    assert own.spec.vocab_size != "auto"
    length = min(TOKENS, own.spec.context_length)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(own.spec.vocab_size, (2, length), generator=generator)
    # Some classes tell by the token where padding is, and count no position there.
    padding = getattr(theirs.config, "pad_token_id", None)
    if type(padding) is int:
        tokens[tokens == padding] = (padding + 1) % own.spec.vocab_size
    real = torch.ones(2, length, dtype=torch.bool)
    family = FAMILIES[own.family]
    if not family.counts_padding(family.config(own.spec)):
        real[1, max(1, length - PADDING) :] = False
    arguments = {"attention_mask": real.long(), **family.further_inputs(own.spec, tokens)}
    with ExitStack() as hooks:
        seen, other = (hooks.enter_context(_outputs(m)) for m in _pairs(own, theirs))
        if own.spec.encoder_model is None:
            found = own.model(tokens, padding_mask=real), theirs(tokens, **arguments)
        else:  # each text is the source of the other
            targets = tokens.flip(0)
            if family.in_steps:
                out = _in_steps(theirs, tokens, targets, arguments)
            else:
                out = theirs(tokens, decoder_input_ids=targets, use_cache=False, **arguments)
            found = own.model(tokens, targets, padding_mask=real), out
        logits = [getattr(out, "prediction_logits", None) for out in found]
    ours, expected = (
        _whole(out.logits if of_tokens is None else of_tokens, real).double()
        for out, of_tokens in zip(found, logits, strict=True)
    )
    difference = (ours - expected).abs().max().item()
    relative = difference / max(expected.std().item(), 1e-12)
    rounding = math.nan
    if exact is not None:
        rounding = ((ours - exact).norm() / (expected - exact).norm().clamp(min=1e-12)).item()
    p, q = F.log_softmax(expected, -1), F.log_softmax(ours, -1)
    comparison = Comparison(
        str(dtype).removeprefix("torch."),
        difference,
        relative,
        max(0.0, (p.exp() * (p - q)).sum(-1).mean().item()),
        rounding,
        (ours.argmax(-1) == expected.argmax(-1)).float().mean().item(),
        _first(seen, other, real, DIVERGES[dtype]),
        relative <= TOLERANCE if exact is None else rounding <= ROUNDING,
    )
    return comparison, expected


def _in_steps(
    theirs: Any, tokens: Tensor, decoder_tokens: Tensor, given: Mapping[str, Tensor]
) -> Any:
    """Return what a model of two stacks makes of the decoder's text, read token by token behind a cache."""
    source, cache, found = theirs.get_encoder()(tokens, **given), None, []
    for token in decoder_tokens.split(1, 1):
        behind = {"past_key_values": cache, "use_cache": True}
        out = theirs(encoder_outputs=source, decoder_input_ids=token, **given, **behind)
        cache = out.past_key_values
        found.append(out.logits)
    return SimpleNamespace(logits=torch.cat(found, 1))


def _whole(logits: Tensor, real: Tensor) -> Tensor:
    """Return the logits of real tokens; beside the log-odds of a replaced one, the logit of its own, which is 0."""
    found = logits[real]  # [tokens, ...]
    alone = found.ndim == 1 or found.shape[-1] == 1
    return F.pad(found.reshape(-1, 1), (1, 0)) if alone else found


def _pairs(own: Loaded, theirs: nn.Module) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Return the modules of both that hold the same tensors, by our names."""
    family = FAMILIES[own.family]
    names = dict(_names(family.model_keys, "", ""))
    for stack in family.stacks:
        for i in range(len(stack.of(own.spec))):
            names |= _names(stack.keys, stack.ours.format(i=i), stack.theirs.format(i=i))
    ours = dict(own.model.named_modules())
    others = {own_name(name): module for name, module in theirs.named_modules()}
    both = [(o, t) for o, t in names.items() if o in ours and t in others]
    # What some do outside of the module.
    scaled, capped = own.spec.embedding.scale != "none", own.spec.head.softcap != "none"
    both = [
        (o, t)
        for o, t in both
        if not (scaled and o.endswith("embedding")) and not (capped and o == "head")
    ]
    return {o: ours[o] for o, _ in both}, {o: others[t] for o, t in both}


def _names(held: Mapping[str, object], ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    """Yield our name and theirs of each module that is one module on both sides."""
    for foreign, own in held.items():
        for name in own if isinstance(own, tuple) else (own,):
            if isinstance(name, str):
                yield ours + name, theirs + foreign


@contextmanager
def _outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Yield what modules return, by name, in the order in which they ran."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, given: object, out: object) -> None:
            if isinstance(out, Tensor):
                # A copy, as Longformer's models scale queries in place.
                found[name] = out.detach().to(torch.float32, copy=True)

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _first(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], real: Tensor, tolerance: float
) -> str | None:
    """Return the name of the first component that differs on real tokens."""
    for name, own in ours.items():
        other = theirs.get(name)
        shaped = own.ndim > 2 and own.shape[:2] == real.shape
        if other is None or not shaped or other.numel() != own.numel():
            continue
        if own.ndim == other.ndim == 3 and own.shape != other.shape:
            other = other.transpose(0, 1)  # tokens before rows there
        if own.ndim == other.ndim == 4 and own.shape != other.shape:
            other = other.transpose(1, 2)  # heads before tokens there
        if other.shape[:2] == own.shape[1::-1] != own.shape[:2]:
            other = other.transpose(0, 1)  # tokens before texts there
        a, b = own[real].flatten(1), other.reshape(own.shape)[real].flatten(1)
        if (a - b).abs().max() > tolerance * b.std().clamp(min=1e-12):
            return name
    return None
