"""Streams, values across layers and auxiliary losses, from outside the package."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.cli import main
from archwright.losses import pop_aux_losses
from archwright.machine.precision import Precision
from archwright.model import Decoder, build
from archwright.optim import build_optimizers
from archwright.planning.activations import LayerActivations
from archwright.planning.cost import parameters_by_part
from archwright.planning.trace import trace
from archwright.reporting.curves import step_charts
from archwright.reporting.history import read_history
from archwright.runs import RunFolder
from archwright.spec.model_spec import ModelSpec
from archwright.spec.optimizers import AdamW
from archwright.testing import check_file
from tests.tiny import tiny_words, write_text

HERE = Path(__file__).parent
SMALL = ModelSpec(dim=32, num_layers=3, vocab_size=64, context_length=24)
WORDS = {
    "hyper_connections": ["residual.kind=hyper"],
    "value_residual": ["attention.kind=value_residual", "attention.num_heads=2"],
    "multi_token": [
        "layer_kinds.ahead.attention.kind=none",
        "layer_kinds.ahead.feedforward.kind=none",
        "layer_kinds.ahead.recurrence.kind=multi_token",
        'layers.suffix=["ahead"]',
        "num_layers=3",
    ],
}
EACH = pytest.mark.parametrize("name", WORDS)
TOKENS = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.usefixtures("visitors")


def spec_of(name: str, *words: str) -> ModelSpec:
    runpy.run_path(str(HERE / f"{name}.py"), run_name=name)
    return SMALL.override(*WORDS[name], *words)


def gradients(model: Decoder) -> dict[str, Tensor]:
    """Return the gradients of a loss that includes the auxiliary ones."""
    model.zero_grad()
    loss = model(TOKENS).logits.logsumexp(-1).square().mean() + sum(pop_aux_losses(model).values())
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@EACH
@pytest.mark.parametrize("what", ["selective", "full"])
def test_recomputation_changes_no_gradient(name: str, what: Any) -> None:
    model = build(spec_of(name), seed=1).double()
    plain = gradients(model)
    assert len(plain) == len([*model.parameters()])
    again = gradients(model.checkpoint_activations(what))
    assert plain.keys() == again.keys()
    for key, gradient in plain.items():
        assert torch.equal(gradient, again[key]), key


@EACH
def test_read_in_pieces_it_is_the_same(name: str) -> None:
    model = build(spec_of(name), seed=1).double().eval()
    cache = model.new_cache()
    parts = [model(part, cache=cache).logits for part in TOKENS.split([5, 1, 18], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(TOKENS).logits, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@EACH
def test_it_is_lawful(name: str) -> None:
    for checked in check_file(HERE / f"{name}.py"):
        assert not [finding for finding in checked.findings if finding.state == "broken"]


@pytest.mark.slow
@EACH
def test_it_is_planned_and_trained(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(Path("text.txt"), 100)
    parts, words = ["--parts", str(HERE / f"{name}.py")], [f"model.{word}" for word in WORDS[name]]
    assert main(["plan", "modern", *words, *parts, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    few = ("budget=12steps", "evaluate.final_max_tokens=50", "data.packing=document_mask")
    given = ("model.attention.num_", *(word.partition("=")[0] for word in words))
    shape = [word for word in tiny_words("text.txt", *few) if not word.startswith(given)]
    assert main([*shape, *words, *parts, "--quiet"]) == 0
    losses = [r["loss"] for r in RunFolder("runs/modern").metrics() if r["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.1
    drawn = {chart.name for chart in step_charts(read_history(RunFolder("runs/modern")))}
    assert ("multi-token-loss" in drawn) == (name == "multi_token")
    assert (
        main(["generate", "runs/modern", *parts, "--max-new-tokens", "5", "--prompt", "the"]) == 0
    )


class TestHyperConnections:
    def test_at_first_they_are_pre_norm(self) -> None:
        """Streams that are alike stay alike, and their sum enters a norm, as pre-norm's stream does."""
        hyper, plain = build(spec_of("hyper_connections"), seed=1), build(SMALL, seed=1)
        plain.load_state_dict(hyper.state_dict(), strict=False)
        found, expected = (model.double()(TOKENS).logits for model in (hyper, plain))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    def test_the_formula(self) -> None:
        """By loops over streams, tokens apart, in float64."""
        model = build(spec_of("hyper_connections", "num_layers=1"), seed=1).double()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        (layer,) = model.stack
        streams = [*torch.randn(4, 1, 1, 32, generator=generator, dtype=torch.float64)]
        x = torch.cat(streams, -1)
        for name in ("attention", "feedforward"):
            part: Any = layer.residual.connections[name]
            table = part.static.view(4, 6) + 0.01 * torch.stack(
                [
                    torch.tanh(part.map(torch.nn.functional.layer_norm(s, (32,)))).flatten()
                    for s in streams
                ]
            )
            h = sum(table[i, 0] * streams[i] for i in range(4))
            out = layer.branch(name)(layer.residual.norms[name](h))
            streams = [
                sum(table[i, 2 + j] * streams[i] for i in range(4)) + table[j, 1] * out
                for j in range(4)
            ]
        torch.testing.assert_close(layer(x), torch.cat(streams, -1), rtol=1e-12, atol=1e-12)

    def test_parameters_and_activations_of_all_streams_are_counted(self) -> None:
        model, plain = build(spec_of("hyper_connections")), build(SMALL)
        connections = 3 * 2 * (4 * 6 + 32 * 6)  # of each group: static part and map
        assert model.num_parameters() == plain.num_parameters() + connections
        of_wiring = {k: n for k, n in parameters_by_part(model).items() if "connections" in k}
        assert sum(of_wiring.values()) == connections
        for what in ("none", "full"):
            four, one = (
                LayerActivations(m, 24, 24).of({0: 3}, what, 1, sequence=False).kept
                for m in (model, plain)
            )
            # Full recomputation keeps what enters layers, in 32 bits; else each group of three layers has four streams.
            assert four - one >= (3 if what == "full" else 6) * (4 - 1) * 32 * 24 * 4
            assert what == "none" or four == 4 * one

    def test_a_pass_keeps_what_is_counted(self) -> None:
        model = build(spec_of("hyper_connections"))
        planned, kept = (
            sum(
                held.num_bytes
                for held in trace(
                    model, "training", length=24, texts=2, kernel="eager", real=real
                ).kept
            )
            for real in (False, True)
        )
        assert planned == pytest.approx(kept, rel=0.01)


class TestValueResidual:
    def test_later_layers_mix_their_values_with_those_of_the_first(self) -> None:
        model = build(spec_of("value_residual", "num_layers=2"), seed=1).double()
        first, second = (layer.branch("attention") for layer in model.stack)
        values: list[Tensor] = []
        for mixer in (first, second):
            mixer.value.register_forward_hook(lambda m, args, out: values.append(out))
        seen: list[Tensor] = []
        second.mix.register_forward_hook(lambda m, args, out: seen.append(out))
        model(TOKENS)
        torch.testing.assert_close(seen[0].flatten(-2), (values[0] + values[1]) / 2)

    def test_gradients_flow_back_to_the_layer_that_provides(self) -> None:
        """By central differences, in float64; through the value of the first layer alone, as its attention gives 0."""
        model = build(spec_of("value_residual"), seed=1).double()
        first: Any = next(model.stack).branch("attention")
        torch.nn.init.zeros_(first.out.weight)

        def loss() -> Tensor:
            return model(TOKENS).logits.square().mean()

        (gradient,) = torch.autograd.grad(loss(), first.value.weight)
        with torch.no_grad():
            for place in ((0, 0), (7, 3)):
                ends = []
                for step in (1e-5, -2e-5):
                    first.value.weight[place] += step
                    ends.append(loss().item())
                first.value.weight[place] += 1e-5
                assert gradient[place].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)
                assert gradient[place].item()

    def test_values_for_later_layers_are_counted(self) -> None:
        model, plain = build(spec_of("value_residual")), build(SMALL)
        kept, alone = (
            LayerActivations(m, 24, 24).of({0: 3}, "full", 1, sequence=False).kept
            for m in (model, plain)
        )
        assert kept >= alone + 32 * 24 * 2  # in 16 bits

    def test_a_layer_alone_says_what_it_lacks(self) -> None:
        from archwright.model.build import build_layer
        from archwright.spec.errors import UserError

        layer = build_layer(spec_of("value_residual"), 1)
        with pytest.raises(UserError, match="value: is read by this layer, and no layer before"):
            layer(torch.zeros(1, 3, 32))


class TestMultiToken:
    @pytest.fixture
    def model(self) -> Decoder:
        return build(
            spec_of("multi_token", "layer_kinds.ahead.recurrence.depth=2"), seed=1
        ).double()

    def test_the_loss_is_that_of_the_tokens_after_the_next_one(self, model: Decoder) -> None:
        """By one text of each length, so that no later token can be seen."""
        *_, last = model.stack
        part: Any = last.branch("recurrence")
        model(TOKENS[:1])
        found = pop_aux_losses(model)["multi_token_loss"]
        context = model.new_context(TOKENS[:1])
        x = model.embedding(TOKENS[:1])
        h = model.through([*model.stack][:-1], model.begin(x, context), context)
        h, expected = last.residual.norms["recurrence"](h), 0.0
        for k, module in enumerate(part.ahead, 1):
            length = 24 - k
            joined = module.join(
                torch.cat((module.norms[0](h[:, :length]), module.norms[1](x[:, k:])), -1)
            )
            short = model.new_context(TOKENS[:1, :length])
            joined = joined + module.attention(module.norms[2](joined), short)
            h = joined + module.feedforward(module.norms[3](joined))
            logits = model.head(module.norms[4](h[:, : length - 1])).flatten(0, 1)
            targets = TOKENS[0, k + 1 :]
            expected += 0.3 / 2 * torch.nn.functional.cross_entropy(logits, targets)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

    def test_the_loss_enters_the_step_under_its_name(self, model: Decoder) -> None:
        from archwright.data.inputs import Batch, Inputs
        from archwright.training.step import train_step

        model.float()
        optimizers = build_optimizers(model, AdamW(lr=1e-2))
        precision = Precision("fp32", torch.device("cpu"))
        rows = Batch(Inputs(TOKENS), TOKENS.roll(-1, 1))
        steps = [
            train_step(model, rows, optimizers, lr_scale=1.0, precision=precision)
            for _ in range(20)
        ]
        first, last = (step.auxiliary["multi_token_loss"] for step in (steps[0], steps[-1]))
        assert last < 0.8 * first
        assert steps[0].auxiliary.keys() == {"multi_token_loss"}

    def test_logits_are_those_of_the_model_without_it(self, model: Decoder) -> None:
        plain = build(SMALL.override("num_layers=2"), seed=1).double()
        plain.load_state_dict(model.state_dict(), strict=False)
        torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits)


COMPILED = """
import pathlib, sys
import torch
from archwright.losses import pop_aux_losses
from archwright.model import build
from archwright.plugins import load_parts_file
from archwright.spec.model_spec import ModelSpec

def gradients(model):
    loss = model(torch.arange(16).view(2, 8)).logits.square().mean()
    loss = loss + sum(pop_aux_losses(model).values())
    return torch.autograd.grad(loss, list(model.parameters()))

file, *words = sys.argv[1:]
load_parts_file(pathlib.Path(file))
small = ModelSpec(dim=32, num_layers=3, vocab_size=64, context_length=8)
model = build(small.override(*words), seed=1).double()
plain = gradients(model)
for layer in model.all_layers:
    layer.compile(backend="aot_eager", fullgraph="multi_token" not in file)
for compiled, eager in zip(gradients(model), plain, strict=True):
    torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-12)
"""


@pytest.mark.slow
@EACH
def test_compiled_layers_are_the_same(name: str) -> None:
    """In a process of its own, without the shape checks of tests, which nothing compiles."""
    words = [sys.executable, "-c", COMPILED, str(HERE / f"{name}.py"), *WORDS[name]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
