"""Every axis takes a choice from outside the package, and computes it; a new axis is tested by being registered."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from archwright.catalogue import axes as catalogue
from archwright.cli.choices_table import print_choices
from archwright.cli.listings import listing
from archwright.model import build
from archwright.model.model import Output
from archwright.optim import build_optimizers, learning_rate, set_learning_rates
from archwright.parts.mixers import ATTENTIONS
from archwright.parts.registry import Registry
from archwright.planning.cost import flops_per_token
from archwright.plugins import REGISTRIES, register
from archwright.spec.attention import Attention, MaskedAttention
from archwright.spec.choice import AutoWidth, Choice, ModelSizes
from archwright.spec.errors import UserError
from archwright.spec.feedforward import FeedForward
from archwright.spec.mixers import Mixer
from archwright.spec.norms import Norm, RMSNorm
from archwright.spec.optimizers import AdamW, Optimizer
from archwright.spec.read import load_run
from archwright.spec.residuals import Residual
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec

BASE = load_run("modern").override(
    *("model.dim=16", "model.num_layers=2", "model.vocab_size=64", "model.context_length=12"),
    *("model.attention.num_heads=2", "model.attention.num_kv_heads=1"),
    "model.position.fraction=0.5",
)
TOKENS = torch.randint(64, (3, 13), generator=torch.Generator().manual_seed(0))

SECTIONS = {section.cls: section for section in catalogue.sections() if section.kinds}

SMALL = {"query_temperature": ["model.attention.query_temperature.period=2"]}
"""Options by which choices do something in texts so short."""

FILES = {
    "attention": "running_mean.py",
    "recurrence": "gated_delta.py",
    "objective": "fill_in_middle.py",
    "task": "test_tasks_page.py",
}
"""Axes whose parts from outside are tested on their own, in a file beside this one: a task is no part of a model."""


def kind_of(choice: type[Choice]) -> str:
    kind: str = choice.model_fields["kind"].default
    return kind


SAID = {"stability", "in_tokens", "extent", "shows_all", "shows_future"}
"""What choices declare for tables, sizes and refusals; nothing is computed otherwise by it."""


def flags(choice: type[Choice]) -> dict[str, Any]:
    """Return what a choice declares beside its fields."""
    return {name: getattr(choice, name) for name in choice.__class_vars__ - {"axis", "kinds"}}


def cases() -> list[Any]:
    """Return of each registry one choice for each combination of flags, the one of the base aside."""
    found: dict[tuple[Any, ...], Any] = {}
    for registry in (r for r in REGISTRIES.values() if r.base.axis not in FILES):
        section = next(s for cls, s in SECTIONS.items() if issubclass(registry.base, cls))
        for choice in (c for c in registry if not c.is_axis()):
            # A twin is related to its axis alone, so it is no mixer on an axis of others.
            is_mixer = issubclass(choice, Mixer) and not issubclass(registry.base, Mixer)
            if kind_of(choice) not in (section.default, "none") and not is_mixer:
                computed = {n: v for n, v in flags(choice).items() if n not in SAID}
                key = (registry.base, *sorted(computed.items()))
                name = f"{registry.base.__name__}-{kind_of(choice)}"
                found.setdefault(key, pytest.param(registry, choice, section, id=name))
    return [*found.values()]


def twin(choice: type[Choice], kind: str) -> type[Choice]:
    """Return a class like a choice of the package, but of another kind, and related to it only by its axis."""
    axes = {registry.base for registry in REGISTRIES.values()}
    base = next(above for above in choice.__mro__ if above in axes)
    own = {n: f for n, f in choice.model_fields.items() if n not in {"kind", *base.model_fields}}
    widths = {name: vars(choice)[name] for name in ("output_dim",) if name in vars(choice)}
    annotations = {name: field.annotation for name, field in own.items()}
    annotations |= {"kind": Literal[kind], **dict.fromkeys(flags(choice), ClassVar[Any])}
    values = own | flags(choice) | widths | {"kind": kind, "__module__": __name__}
    return type("Outside", (base,), {"__annotations__": annotations, **values})


def part_of_twin(registry: Registry, choice: type[Choice]) -> Callable[..., Any]:
    """Return a part that computes what a choice of the package does, from the options of its twin."""

    def part(spec: Choice, *given: Any, **named: Any) -> Any:
        known = choice.model_validate({**spec.model_dump(), "kind": kind_of(choice)})
        return registry.part(known)(known, *given, **named)

    return part


def with_twin(run: RunSpec, path: str) -> RunSpec:
    """Return a run whose choice at a path is its twin, with the same options."""
    values = run.model_copy(update={"model": run.model.resolved()}).model_dump(by_alias=True)
    table = values
    for key in path.split("."):
        table = table[key]
    table["kind"] = "outside"
    return RunSpec.model_validate(values)


def trained(run: RunSpec) -> Tensor:
    """Return the logits of a model after three steps, and those of rows behind them."""
    torch.manual_seed(0)  # which sparsemixer draws from
    model = build(run.model)
    optimizers = build_optimizers(model, run.optimizer)
    for step in range(3):
        set_learning_rates(optimizers, learning_rate(run.schedule, step, 3))
        logits = read(model, TOKENS[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
    with torch.no_grad():
        out = read(model, TOKENS[:, 1:])
    rows = () if out.sequence_logits is None else (out.sequence_logits.flatten(),)
    return torch.cat((out.logits.flatten(), *rows))


def read(model: nn.Module, tokens: Tensor) -> Output:
    """Return what a model makes of tokens; one with an encoder reads them there, too."""
    both = {} if model.spec.encoder.is_none else {"decoder_tokens": tokens}  # type: ignore[union-attr]
    out: Output = model(tokens, **both)
    return out


@pytest.fixture(scope="module")
def of_base() -> Tensor:
    return trained(BASE)


@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize(("registry", "choice", "section"), cases())
def test_a_choice_from_outside_is_computed(
    registry: Registry, choice: type[Choice], section: catalogue.Section, of_base: Tensor
) -> None:
    asks = next(kind.asks for kind in section.kinds if kind.cls is choice)
    known = BASE.override(*asks).override(*SMALL.get(section.name, ()))
    outside = twin(choice, "outside")
    run = with_twin(known, section.path)
    with pytest.raises(UserError) as caught:
        trained(run)
    assert caught.value.lines == (
        f'{section.name}.kind = "outside": Outside has no part; '
        "give it one with archwright.register(Outside, ...)",
    )
    register(outside, part_of_twin(registry, choice))
    found = trained(run)
    assert torch.equal(found, trained(known))
    assert found.shape != of_base.shape or not torch.allclose(found, of_base)


@pytest.mark.slow
@pytest.mark.usefixtures("visitors")
def test_choices_from_outside_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = []
    for registry in REGISTRIES.values():
        base = registry.base
        ours = (c for c in registry if issubclass(c, base) and not c.is_axis())
        choice = next(ours, base.kinds.get("none"))  # no recurrence is the package's
        kinds.append([base.axis, f"outside_{base.__name__.lower()}"])
        twin(choice, kinds[-1][1])
    schema = json.dumps(listing("schema_run"))
    print_choices(listing("choices"))
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    for axis, kind in kinds:
        assert f'"const": "{kind}"' in schema
        assert [axis, kind] in listed


def test_every_axis_has_a_case() -> None:
    tested = {case.values[0].base.axis for case in cases()} | FILES.keys()
    assert tested == {registry.base.axis for registry in REGISTRIES.values()}


@pytest.mark.usefixtures("visitors")
class TestRefusals:
    """What a part does not do as its axis says is said in one line."""

    @pytest.fixture
    def norm(self) -> type[Norm]:
        return twin(RMSNorm, "outside")  # type: ignore[return-value]

    def said(self, *words: str) -> str:
        with pytest.raises(UserError) as caught:
            build(BASE.model.override("norm.kind=outside", *words))
        (line,) = caught.value.lines
        return line

    def test_other_arguments(self, norm: type[Norm]) -> None:
        class Centered(nn.Identity):
            def __init__(self, spec: Norm, dim: int) -> None:
                super().__init__()

        register(norm, Centered)
        build(BASE.model.override("norm.kind=outside"))
        line = self.said("attention.qk_norm.kind=outside", "attention.qk_norm_over=per_head")
        assert line == (
            'norm.kind = "outside": Centered was called with other arguments than it takes: got an unexpected '
            "keyword argument 'heads'; expected a part that is called with (spec, dim) or, where each head has a "
            "norm of its own, (spec, dim, heads=number) and gives a Module"
        )

    def test_another_result(self, norm: type[Norm]) -> None:
        register(norm, lambda spec, dim: None)
        assert 'norm.kind = "outside": <lambda> gave a NoneType; expected a part' in self.said()

    def test_its_own_errors_are_its_own(self, norm: type[Norm]) -> None:
        def broken(spec: Norm, dim: int) -> nn.Module:
            raise TypeError("of its own")

        register(norm, broken)
        with pytest.raises(TypeError, match="of its own"):
            build(BASE.model.override("norm.kind=outside"))

    def test_what_an_axis_declares_is_declared(self) -> None:
        class Outside(Residual):
            kind: Literal["outside"] = "outside"

        with pytest.raises(ValueError, match="Outside: lacks final_norm, which each residual"):
            register(Outside, nn.Identity)

    def test_what_a_base_leaves_to_its_choices_is_there(self) -> None:
        class Outside(MaskedAttention):
            kind: Literal["outside"] = "outside"

        with pytest.raises(ValueError, match="Outside: lacks heads"):
            register(Outside, nn.Identity)

    def test_an_optimizer_moves_every_parameter(self) -> None:
        def matrices_only(spec: Any, by_role: Any, *others: Any) -> dict[str, Any]:
            return {"sgd": torch.optim.SGD([p for _, p in by_role["matrix"]], spec.lr)}

        register(twin(AdamW, "outside"), matrices_only)
        run = BASE.override("optimizer.kind=outside")
        with pytest.raises(UserError, match=r"moves no embedding\.weight, nor \d+ others"):
            trained(run)

    def test_an_optimizer_names_its_learning_rates(self) -> None:
        with pytest.raises(ValueError, match=r"learning_rates is \('lr',\); expected the names"):
            type("Outside", (Optimizer,), {"__annotations__": {"kind": str}, "kind": "outside"})


class TestAttention:
    """An attention from outside gets what it takes, and is refused what it would ignore."""

    @pytest.fixture
    def run(self, visitors: None) -> RunSpec:
        runpy.run_path(str(Path(__file__).with_name("running_mean.py")))
        return BASE.override("model.attention.kind=running_mean", "model.position.kind=none")

    def test_documents_and_padding_reach_it(self, run: RunSpec) -> None:
        model = build(run.model).double()
        tokens, ids = TOKENS[:1, :12], torch.tensor([[0] * 5 + [1] * 7])
        packed = model(tokens, segment_ids=ids).logits
        torch.testing.assert_close(packed[:, 5:], model(tokens[:, 5:]).logits)
        padded = torch.cat((tokens[:, :2], tokens), 1)
        real = torch.arange(14)[None] >= 2
        found = model(padded, padding_mask=real).logits
        torch.testing.assert_close(found[:, 2:], model(tokens).logits)

    def test_it_is_counted(self, run: RunSpec) -> None:
        model = build(run.model)
        with FlopCounterMode(display=False) as counter:
            model(TOKENS[:, :12])
        assert counter.get_total_flops() == pytest.approx(36 * flops_per_token(model, 12) / 3, 0.01)

    def test_positions_inside_attention_are_refused(self, run: RunSpec) -> None:
        with pytest.raises(UserError, match='found "rope", which acts inside attention'):
            build(run.override("model.position.kind=rope").model)

    @pytest.mark.parametrize("name", ["segment_ids", "padding_mask"])
    def test_what_it_takes_not_is_refused(
        self, run: RunSpec, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        choice = type(run.model.attention)
        monkeypatch.setattr(choice, "takes", choice.takes - {name})
        given = {
            "segment_ids": torch.zeros_like(TOKENS),
            "padding_mask": torch.ones_like(TOKENS, dtype=torch.bool),
        }
        model = build(run.model)
        with pytest.raises(UserError, match=f"RunningMeanAttention takes no {name}"):
            model(TOKENS, **{name: given[name]})
        with pytest.raises(UserError, match=f"takes no {name}, but"):
            enforce_run(run.override("data.packing=document_mask"))

    def test_one_that_sees_what_follows_is_not_trained(
        self, run: RunSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enforce_run(run)
        monkeypatch.setattr(type(run.model.attention), "causal", False)
        with pytest.raises(UserError, match=r"attention\.kind: found .* see what follows"):
            enforce_run(run)

    def test_one_that_is_not_counted_is_refused(
        self, run: RunSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        part = ATTENTIONS.part(run.model.attention)
        monkeypatch.setattr(part, "__abstractmethods__", frozenset({"flops_per_token"}))
        with pytest.raises(UserError, match=r"RunningMeanAttention has no flops_per_token"):
            build(run.model)

    def test_inputs_that_no_batch_has(self) -> None:
        with pytest.raises(ValueError, match="takes tokens; expected any of attention_mask"):

            class Wrong(Attention):
                takes: ClassVar[frozenset[str]] = frozenset({"tokens"})


@pytest.mark.usefixtures("visitors")
def test_a_choice_from_outside_fills_in_what_it_leaves_open() -> None:
    class Wide(FeedForward):
        kind: Literal["wide"] = "wide"
        width: AutoWidth = "auto"

        def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
            return {"width": 3 * sizes.dim} if self.width == "auto" else {}

    spec = BASE.model.override("feedforward.kind=wide")
    assert spec.resolved().feedforward.model_dump() == {"kind": "wide", "width": 3 * spec.dim}
    given = spec.override("feedforward.width=7").resolved()
    assert given.feedforward.model_dump()["width"] == 7
