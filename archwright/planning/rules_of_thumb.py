"""Rules of thumb: usual ranges of numbers, with sources and evidence. A number outside is suspicious, not wrong."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from archwright import format as fmt
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer
from archwright.planning.cost import active_parameters, parameters_by_part
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.read import load_run, preset_names
from archwright.spec.run_spec import RunSpec

Strength = Literal["strong", "moderate", "weak"]
"""strong: replicated, or follows from arithmetic; moderate: measured once, or at some scales; weak: a convention, or
sources disagree."""


@dataclass(frozen=True)
class Subject:
    """A run to check and its model, which may be on the meta device."""

    run: RunSpec
    model: Decoder
    tokens: float | None = None
    """Training tokens; None if unknown."""

    @cached_property
    def spec(self) -> ModelSpec:
        """The model's architecture, with every "auto" resolved."""
        return self.run.model.resolved()


Found = Iterator[tuple[str, float]]
"""Dotted paths and their numbers."""


@dataclass(frozen=True)
class RuleOfThumb:
    """A usual range of a number, inclusive."""

    name: str
    quantity: str
    numbers: Callable[[Subject], Found]
    least: float
    most: float
    reason: str
    source: str
    strength: Strength

    @property
    def usual(self) -> str:
        """The range as text."""
        least, most = (fmt.significant(end) for end in (self.least, self.most))
        if self.least == self.most:
            return least
        if math.isinf(self.most):
            return f"at least {least}"
        return f"{least} to {most}" if self.least > 0 else f"at most {most}"


@dataclass(frozen=True)
class Suspicion:
    """A number outside its usual range."""

    rule: RuleOfThumb
    path: str
    found: float

    @property
    def key(self) -> tuple[str, str]:
        """Name of the rule and path of the number."""
        return self.rule.name, self.path

    @property
    def beyond(self) -> float:
        """Distance of the number from its range."""
        return max(self.rule.least - self.found, self.found - self.rule.most)

    @property
    def line(self) -> str:
        """The suspicion as a sentence."""
        rule = self.rule
        return (
            f"{self.path}: {rule.quantity} is {fmt.significant(self.found)}, usually {rule.usual}: {rule.reason} "
            f"({rule.source}; {rule.strength} evidence)"
        )

    def record(self) -> dict[str, Any]:
        """Return the suspicion as plain data, with an unbounded upper end as None."""
        rule = self.rule
        return {
            "rule": rule.name,
            "path": self.path,
            "found": self.found,
            **{key: value for key, value in vars(rule).items() if key not in ("name", "numbers")},
            "most": None if math.isinf(rule.most) else rule.most,
        }


def suspicions(run: RunSpec, model: Decoder, tokens: float | None = None) -> list[Suspicion]:
    """Return the unusual numbers of a run and its model, strongest evidence first.

    A number is omitted if it is at least as unusual in the published model of the same name.
    """
    unusual = {suspicion.key: suspicion for suspicion in _unusual(Subject(run, model, tokens))}
    if not unusual:
        return []
    published = _published(run, model)
    if published is not None:
        for peer in _unusual(published):
            if peer.key in unusual and unusual[peer.key].beyond <= peer.beyond + 1e-9:
                del unusual[peer.key]
    order = ("strong", "moderate", "weak")
    return sorted(unusual.values(), key=lambda suspicion: order.index(suspicion.rule.strength))


def _unusual(subject: Subject) -> Iterator[Suspicion]:
    for rule in RULES_OF_THUMB:
        for path, number in rule.numbers(subject):
            if not rule.least <= number <= rule.most:
                yield Suspicion(rule, path, number)


def _published(run: RunSpec, model: Decoder) -> Subject | None:
    """Return the preset of the same name. Reuse `model` if the specs are equal."""
    name = run.model.name
    if name not in preset_names("models"):
        return None
    published = load_run(name)
    if published.model == run.model:
        return Subject(published, model)
    built = build(published.model, device="meta")
    assert isinstance(built, Decoder)
    return Subject(published, built)


def _layers(subject: Subject) -> Iterator[tuple[str, LayerSpec, int]]:
    """Yield the path prefix, spec and first index of each kind of layer."""
    names = subject.spec.layers.names(subject.spec.num_layers)
    for name, layer in subject.spec.layers_by_kind.items():
        if name in names:
            prefix = "" if name == "default" else f"layer_kinds.{name}."
            yield prefix, layer, names.index(name)


def _widths(subject: Subject) -> Found:
    """Yield the active feed-forward width over the usual width."""
    layers = [*subject.model.stack]
    for at, spec, index in _layers(subject):
        if spec.feedforward.hidden_layer is None:
            continue
        width = sum(
            m.active_fraction * m.weight.numel() / m.d_out
            for m in layers[index].branch("feedforward").modules()
            if isinstance(m, Linear) and m.is_residual_output
        )
        ratio = width / subject.spec.dim / spec.feedforward.hidden_layer.usual_ratio
        yield f"{at}feedforward", ratio


def _heads(subject: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of attention with heads of equal width."""
    for at, spec, _ in _layers(subject):
        options = dict(spec.attention)
        if {"num_heads", "head_dim"} <= options.keys():
            yield f"{at}attention", options


def _heads_over_dim(subject: Subject) -> Found:
    for path, options in _heads(subject):
        yield path, options["num_heads"] * options["head_dim"] / subject.spec.dim


def _head_dims(subject: Subject) -> Found:
    for path, options in _heads(subject):
        yield f"{path}.head_dim", options["head_dim"]


def _queries_of_a_key(subject: Subject) -> Found:
    for path, options in _heads(subject):
        if "num_kv_heads" in options:
            yield f"{path}.num_kv_heads", options["num_heads"] / options["num_kv_heads"]


def _shape(subject: Subject) -> Found:
    yield "num_layers", subject.spec.dim / subject.spec.num_layers


def _depth(subject: Subject) -> Found:
    """Yield the depth over the optimum (ln dim - 5.039) / 0.0555. The fit used widths from about 200."""
    spec = subject.spec
    if spec.dim >= 256:
        yield "num_layers", spec.num_layers * 0.0555 / (math.log(spec.dim) - 5.039)


def _vocabulary(subject: Subject) -> Found:
    """Yield a vocabulary table's parameters over the optimum, 216,000 * 8192 * (n / 68.7e9)^0.84.

    n is the number of active parameters without such tables. Llama 2 70B, with n = 68.7e9, sets the scale."""
    spec = subject.spec
    assert spec.vocab_size != "auto"
    tables = sum(
        number
        for part, number in parameters_by_part(subject.model).items()
        if part in ("embedding", "head")
    )
    n = active_parameters(subject.model) - tables
    best = 216e3 * 8192 * (n / 68.7e9) ** 0.84
    yield "vocab_size", spec.vocab_size * spec.embedding_dim / best


def _tokens(subject: Subject) -> Found:
    if subject.tokens is not None:
        yield "tokens", subject.tokens / subject.model.num_parameters()


def _decay(subject: Subject) -> Found:
    options = dict(subject.run.optimizer)
    if "weight_decay" in options:
        yield "optimizer.weight_decay", options["weight_decay"]


def _dropout(subject: Subject) -> Found:
    spec = subject.spec
    yield "embedding.dropout", spec.embedding.dropout
    for at, layer, _ in _layers(subject):
        for name in ("attention", "feedforward", "residual"):
            options = dict(getattr(layer, name))
            if "dropout" in options:
                yield f"{at}{name}.dropout", options["dropout"]


def _reach(subject: Subject) -> Found:
    """Yield the receptive field of all windows over the context. Yield nothing if a layer has unlimited lookback."""
    reach = 0
    for mixer in subject.model.mixers():
        back = mixer.pattern.value.lookback if isinstance(mixer, AttentionMixer) else None
        if back is None:
            return
        reach += back
    yield "attention.mask", reach / max(1, subject.spec.context_length - 1)


def _balance(subject: Subject) -> Found:
    for at, layer, _ in _layers(subject):
        options = dict(layer.feedforward)
        if {"balance_loss", "selection_bias_update_rate"} <= options.keys():
            ways = (options["balance_loss"] > 0) + (options["selection_bias_update_rate"] > 0)
            yield f"{at}feedforward", ways


RULES_OF_THUMB: tuple[RuleOfThumb, ...] = (
    RuleOfThumb(
        "hidden width",
        "the width over 4 dim, or 8/3 dim where gated,",
        _widths,
        0.25,
        2.5,
        "the loss has a broad valley around this width, and more is lost further off",
        "Kaplan et al., 2020, figure 5; Shazeer, 2020",
        "moderate",
    ),
    RuleOfThumb(
        "shape",
        "dim / num_layers",
        _shape,
        24,
        320,
        "published models lie near 100; at equal parameters the loss hardly moves within a factor of 10",
        "Kaplan et al., 2020, figure 5; Tay et al., 2021",
        "weak",
    ),
    RuleOfThumb(
        "depth for its width",
        "the depth over the one that this width supports",
        _depth,
        0,
        1.5,
        "beyond, a wider model learns more from as many parameters; small models were published that disagree",
        "Levine et al., 2020; Liu et al., 2024, MobileLLM",
        "weak",
    ),
    RuleOfThumb(
        "heads over dim",
        "num_heads * head_dim over dim",
        _heads_over_dim,
        0.5,
        2,
        "published models lie near 1, though heads need no such width",
        "Bhojanapalli et al., 2020",
        "weak",
    ),
    RuleOfThumb(
        "width of heads",
        "the width",
        _head_dims,
        32,
        256,
        "scores of a head have at most this rank, so that narrow heads cannot tell many keys apart; kernels end at 256",
        "Bhojanapalli et al., 2020; Amsel et al., 2024",
        "moderate",
    ),
    RuleOfThumb(
        "query heads per KV head",
        "the number of query heads per KV head",
        _queries_of_a_key,
        1,
        16,
        "groups of 8 lose little, one KV head for all loses more",
        "Ainslie et al., 2023; Shazeer, 2019",
        "strong",
    ),
    RuleOfThumb(
        "vocabulary",
        "its parameters over the best for this size",
        _vocabulary,
        0.1,
        10,
        "the best vocabulary grows with the model, more slowly than it does",
        "Tao et al., 2024",
        "moderate",
    ),
    RuleOfThumb(
        "tokens per parameter",
        "the number per parameter",
        _tokens,
        5,
        2000,
        "20 give the lowest loss for the compute, more a smaller model that is cheaper to serve",
        "Hoffmann et al., 2022; Sardana et al., 2023",
        "strong",
    ),
    RuleOfThumb(
        "weight decay",
        "the factor",
        _decay,
        0.01,
        0.5,
        "0.1 lowers the final loss where the learning rate decays, and keeps weights from growing",
        "D'Angelo et al., 2023; Loshchilov and Hutter, 2017",
        "moderate",
    ),
    RuleOfThumb(
        "dropout",
        "the share",
        _dropout,
        0,
        0,
        "where no sequence is read twice, it only slows learning",
        "Liu, Bauer and Manning, 2025",
        "strong",
    ),
    RuleOfThumb(
        "reach of windows",
        "the reach of all layers over context_length",
        _reach,
        1,
        math.inf,
        "no layer sees the whole sequence, and what is further away is lost",
        "Jiang et al., 2023, Mistral 7B, section 2; Arora et al., 2023",
        "strong",
    ),
    RuleOfThumb(
        "balance of experts",
        "the number of ways in which experts are balanced",
        _balance,
        1,
        math.inf,
        "without balance_loss or selection_bias_update_rate few experts get all tokens",
        "Shazeer et al., 2017, section 4; Wang et al., 2024",
        "strong",
    ),
)
"""All rules, in the order of a model's parts."""
