"""Compare the outputs of a folder's model here and in `transformers`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.hf.configs import read_config, text_config
from archwright.hf.families import FAMILIES
from archwright.hf.loading import Loaded, load
from archwright.hf.multimodal import text_name
from archwright.spec.errors import UserError
from archwright.text.json_table import first_line
from archwright.text.selfcheck import PROBE

TOKENS = 64
"""Length of the compared sequences, unless the model's context is shorter."""
PADDING = 9
"""Padding tokens at the end of the second sequence."""
TOLERANCE = 1e-4
"""Maximum float32 difference of logits, relative to their standard deviation, for agreement."""
TYPICAL = 5e-5
"""Root mean square of these differences that is agreement for models with a recurrence.

The norm of a recurrence's output enlarges rounding errors at a few tokens with small values."""
ROUNDING = 1.5
"""Maximum bfloat16 rounding error for agreement, relative to the error of `transformers`."""
DIVERGES = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Relative difference above which a component counts as different, by dtype."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of logits at one precision, over all tokens except padding."""

    dtype: str
    max_difference: float
    """Largest absolute difference of two logits."""
    relative: float
    """Largest absolute difference over the standard deviation of the logits."""
    divergence: float
    """Mean KL divergence of the next-token distributions, in nats."""
    rounding: float
    """Norm of our error / norm of the error of `transformers`, both relative to its float32 logits; nan in float32."""
    top_1: float
    """Share of tokens with the same most likely next token."""
    first: str | None
    """First component with a different output; None if there is none."""
    agrees: bool
    """True if the logits are equal within rounding."""


@dataclass(frozen=True)
class Certificate:
    """Result of comparing a folder with `transformers`."""

    family: str
    architecture: str
    transformers: str
    torch: str
    comparisons: tuple[Comparison, ...]
    same_ids: bool
    """True if a text has the same token ids here and in `transformers`, apart from added begin and end tokens."""
    text: str
    """Summary of the comparison of token ids."""

    @property
    def agrees(self) -> bool:
        """True if all comparisons agree and the token ids are equal."""
        return self.same_ids and all(comparison.agrees for comparison in self.comparisons)


def verify(folder: str | Path) -> Certificate:
    """Compare a folder's logits and token ids here and in `transformers`.

    Logits are compared in float32 and bfloat16, on two sequences of random tokens, one of them padded.

    Raises:
        UserError: `transformers` is not installed or cannot read the folder, or `load` rejects the folder.
    """
    try:
        import transformers
    except ImportError:
        raise UserError(
            "verify compares with transformers, which is not installed: pip install 'archwright[verify]'"
        ) from None
    comparisons, exact = [], None
    for dtype in DIVERGES:
        loaded = load(folder, dtype=dtype)
        comparison, logits = _compare(loaded, _theirs(folder, loaded, dtype), dtype, exact)
        comparisons.append(comparison)
        exact = logits if exact is None else exact
    family = FAMILIES[loaded.family]
    return Certificate(
        loaded.family,
        family.architecture_of(loaded.spec),
        transformers.__version__,
        torch.__version__,
        tuple(comparisons),
        *_text(folder, loaded),
    )


def _text(folder: str | Path, loaded: Loaded) -> tuple[bool, str]:
    """Compare the token ids of a text; return equality and summary."""
    from transformers import AutoTokenizer

    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return True, "no supported tokenizer"
    # ASCII only, because transformers 5 drops the normalizers of some files.
    text = "".join(
        char for char in PROBE if char.isascii() and (char.isprintable() or char == "\n")
    )
    for name in tokenizer.special_ids:  # special tokens in transformers, plain text here
        text = text.replace(name, "")
    try:
        theirs: list[int] = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )(text).input_ids
    except Exception as error:  # of many types
        return False, f"transformers cannot read the tokenizer: {first_line(error)}"
    ours = tokenizer.encode(text).tolist()
    starts = [i for i in range(len(theirs)) if theirs[i : i + len(ours)] == ours]
    if not starts:
        return False, f"other ids: {len(ours)} here, {len(theirs)} in transformers"
    around = theirs[: starts[0]], theirs[starts[0] + len(ours) :]
    has_source = loaded.spec.encoder_model is not None
    return True, tokenizer.otherwise(around, has_source=has_source) or "the same ids"


def _theirs(folder: str | Path, loaded: Loaded, dtype: torch.dtype) -> nn.Module:
    import transformers
    from transformers import logging

    auto: Any = transformers.AutoModelForCausalLM
    if text_config(read_config(Path(folder)))[1] is not None:
        auto = transformers.AutoModelForImageTextToText
    if loaded.spec.encoder_model is not None:
        auto = transformers.AutoModelForSeq2SeqLM
    architecture = FAMILIES[loaded.family].architecture_of(loaded.spec)
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
    except Exception as error:  # of many types
        raise UserError(f"{folder}: transformers cannot read it: {first_line(error)}") from None
    return model.eval()


@torch.inference_mode()
def _compare(
    loaded: Loaded, theirs: nn.Module, dtype: torch.dtype, exact: Tensor | None
) -> tuple[Comparison, Tensor]:
    """Compare our logits with those of `transformers`, which are also returned. `exact` are its float32 logits."""
    # Two random sequences, the second one padded.
    assert loaded.spec.vocab_size != "auto"
    length = min(TOKENS, loaded.spec.context_length)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(loaded.spec.vocab_size, (2, length), generator=generator)
    # Some classes detect padding by its token id, and skip positions there.
    padding = getattr(theirs.config, "pad_token_id", None)
    if type(padding) is int:
        tokens[tokens == padding] = (padding + 1) % loaded.spec.vocab_size
    real = torch.ones(2, length, dtype=torch.bool)
    family = FAMILIES[loaded.family]
    if not family.counts_padding(family.config(loaded.spec)):
        real[1, max(1, length - PADDING) :] = False
    arguments = {"attention_mask": real.long(), **family.further_inputs(loaded.spec, tokens)}
    sequences: tuple[Tensor, ...] = (tokens,)
    with ExitStack() as hooks:
        inner, their_inner = (hooks.enter_context(_outputs(m)) for m in _pairs(loaded, theirs))
        if loaded.spec.encoder_model is None:
            out = theirs(tokens, **arguments)
        else:  # the source of each sequence is the other sequence
            targets = tokens.flip(0)
            out = theirs(tokens, decoder_input_ids=targets, use_cache=False, **arguments)
            sequences = (tokens, targets)
        expected = _real_logits(out, real)
        ours = _real_logits(loaded.model(*sequences, padding_mask=real), real)
    difference = (ours - expected).abs().max().item()
    relative = difference / max(expected.std().item(), 1e-12)
    typical = (ours - expected).square().mean().sqrt() / expected.std().clamp(min=1e-12)
    is_recurrent = not all(x.recurrence.is_none for x in loaded.spec.layers_by_kind.values())
    agrees = relative <= TOLERANCE or (is_recurrent and typical.item() <= TYPICAL)
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
        _first(inner, their_inner, real, DIVERGES[dtype]),
        agrees if exact is None else rounding <= ROUNDING,
    )
    return comparison, expected


def _real_logits(out: Any, real: Tensor) -> Tensor:
    """Return the logits of tokens other than padding in float64; binary logits become pairs (0, logit)."""
    of_tokens = getattr(out, "prediction_logits", None)
    selected = (out.logits if of_tokens is None else of_tokens)[real].double()  # [tokens, ...]
    binary = selected.ndim == 1 or selected.shape[-1] == 1
    return F.pad(selected.reshape(-1, 1), (1, 0)) if binary else selected


def _pairs(loaded: Loaded, theirs: nn.Module) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Return the modules with a counterpart in `transformers`, and these counterparts, both by our names."""
    family = FAMILIES[loaded.family]
    names = dict(_names(family.model_keys, "", ""))
    for stack in family.stacks:
        for i in range(len(stack.of(loaded.spec))):
            names |= _names(stack.keys, stack.ours.format(i=i), stack.theirs.format(i=i))
    ours = dict(loaded.model.named_modules())
    modules = {text_name(name): module for name, module in theirs.named_modules()}
    both = [(o, t) for o, t in names.items() if o in ours and t in modules]
    # Some classes scale or cap outside of the module.
    scaled, capped = loaded.spec.embedding.scale != "none", loaded.spec.head.softcap != "none"
    both = [
        (o, t)
        for o, t in both
        if not (scaled and o.endswith("embedding")) and not (capped and o == "head")
    ]
    return {o: ours[o] for o, _ in both}, {o: modules[t] for o, t in both}


def _names(held: Mapping[str, object], ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    """Yield our name and their name of each one-to-one module."""
    for foreign, contents in held.items():
        for name in contents if isinstance(contents, tuple) else (contents,):
            if isinstance(name, str):
                yield ours + name, theirs + foreign


@contextmanager
def _outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Tensor]]:
    """Record the outputs of modules by name, in execution order."""
    outputs: dict[str, Tensor] = {}

    def recorder(name: str) -> Any:
        def hook(module: nn.Module, args: object, out: object) -> None:
            if isinstance(out, Tensor):
                # A copy, because Longformer's models scale queries in place.
                outputs[name] = out.detach().to(torch.float32, copy=True)

        return hook

    handles = [module.register_forward_hook(recorder(name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _first(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], real: Tensor, tolerance: float
) -> str | None:
    """Return the first component with different outputs for tokens other than padding."""
    for name, out in ours.items():
        other = theirs.get(name)
        shaped = out.ndim > 2 and out.shape[:2] == real.shape
        if other is None or not shaped or other.numel() != out.numel():
            continue
        if out.ndim == other.ndim == 3 and out.shape != other.shape:
            other = other.transpose(0, 1)  # [tokens, batch, dim] there
        if out.ndim == other.ndim == 4 and out.shape != other.shape:
            other = other.transpose(1, 2)  # [batch, heads, tokens, dim] there
        if other.shape[:2] == out.shape[1::-1] != out.shape[:2]:
            other = other.transpose(0, 1)  # [tokens, batch, ...] there
        a, b = out[real].flatten(1), other.reshape(out.shape)[real].flatten(1)
        if (a - b).abs().max() > tolerance * b.std().clamp(min=1e-12):
            return name
    return None
