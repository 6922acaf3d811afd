"""Probes against the plain formulas in float64; and that they change nothing, and leave nothing behind."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archwright as aw
from archwright.inspection import probes as probes_room
from archwright.inspection.attention_scores import QUERIES, largest_logit, mean_entropy
from archwright.inspection.probes import PASSES, STEPS, Probes, Watch
from archwright.losses import cross_entropy
from archwright.parts.context import Context
from archwright.parts.kernels import ScoreMods
from archwright.parts.kernels.scores import ElementwiseBias
from archwright.parts.masks import MASKS, AttentionMask
from archwright.parts.token_layout import token_layout
from archwright.runs import RunFolder
from archwright.spec.masks import Window
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.training.loop import DivergedError
from archwright.training.session import Session
from tests.tiny import tiny_run
from tests.training.whole import Died, at_step, die, leave_out, timeless, train

SPEC = ModelSpec(dim=16, num_layers=3, vocab_size=64, context_length=24).override(
    "attention.num_heads=4", "attention.num_kv_heads=2"
)


@pytest.fixture
def model() -> aw.Decoder:
    return aw.build(SPEC, seed=1)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, 64, (3, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch)


def step(model: Any, tokens: Tensor, optimizer: torch.optim.Optimizer, parts: int = 1) -> None:
    """Train on the parts of a batch one after the other; the gradients stay."""
    optimizer.zero_grad()
    for part in tokens.tensor_split(parts):
        loss = cross_entropy(model(part).logits, part.roll(-1, 1), num_valid=tokens.numel())
        loss.total.backward()
    optimizer.step()


def parts_of(run: nn.Module) -> dict[str, Any]:
    """All attributes of all modules that hooks or replaced functions would show up in."""
    found: dict[str, Any] = {}
    for path, module in run.named_modules():
        names = [n for n in vars(module) if n.endswith("_hooks") and n != "_parameters"]
        found |= {f"{path}.{n}": dict(getattr(module, n)) for n in names}
        found[f"{path}.kernel"] = getattr(module, "kernel", None)
    for name, parameter in run.named_parameters():
        found[name] = parameter._post_accumulate_grad_hooks
    return found


def test_gradient_norms_are_those_of_grad(model: aw.Decoder, tokens: Tensor) -> None:
    probes = Probes(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    with probes:
        step(model, tokens, optimizer, parts=3)
    of = probes.values["gradient_norm"]
    assert list(of) == ["embedding", "layers.0", "layers.1", "layers.2", "norm", "head"]
    for row, norm in of.items():
        own = [p.grad for n, p in model.named_parameters() if n.startswith(f"{row}.")]
        squares = [(g.double() ** 2).sum().item() for g in own if g is not None]
        assert norm == pytest.approx(math.sqrt(sum(squares)), rel=1e-5)


def test_a_loss_scale_is_taken_out(model: aw.Decoder, tokens: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Probes(model, optimizer) as plain:
        step(model, tokens, optimizer)
    with Probes(model, loss_scale=8.0) as scaled:
        step(model, tokens, optimizer)
    for row, norm in plain.values["gradient_norm"].items():
        assert scaled.values["gradient_norm"][row] == pytest.approx(norm / 8, rel=1e-6)


def test_weights_and_updates_are_those_of_copies(model: aw.Decoder, tokens: Tensor) -> None:
    before = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Probes(model, optimizer) as probes:
        step(model, tokens, optimizer)
    matrices = {n: p for n, p in model.named_parameters() if p.ndim == 2}
    for name in ("weight_rms", "update_ratio"):
        assert [f"{row}.weight" for row in probes.values[name]] == list(matrices)
    for name, p in matrices.items():
        old, row = before[name], name.removesuffix(".weight")
        size = old.square().mean().sqrt().item()
        ratio = (p.detach().double() - old).square().mean().sqrt().item() / size
        assert probes.values["weight_rms"][row] == pytest.approx(size, rel=1e-5)
        assert probes.values["update_ratio"][row] == pytest.approx(ratio, rel=1e-4)


def test_the_stream_the_head_and_what_is_dead(model: aw.Decoder, tokens: Tensor) -> None:
    with torch.no_grad():  # a third of the units of the last layer see nothing
        model.layers[2].feedforward.up.weight[:12] = 0  # type: ignore[union-attr]
        with Probes(model) as probes:
            logits = model(tokens).logits
        x, sizes = model.embedding(tokens), []
        context = Context(token_layout(tokens), len(tokens))
        for layer in [None, *model.layers]:
            if layer is not None:
                x = layer(x, context)
            sizes.append(x.double().square().mean().sqrt().item())
    rows = ["embedding", "layers.0", "layers.1", "layers.2"]
    assert probes.values["residual_rms"] == pytest.approx(dict(zip(rows, sizes, strict=True)))
    log_z = logits.double().exp().sum(-1).log().mean().item()
    assert probes.values["log_z"]["head"] == pytest.approx(log_z, rel=1e-5)
    hidden = model.layers[2].feedforward.down.d_in  # type: ignore[union-attr]
    dead = {f"layers.{i}.feedforward": 0.0 for i in (0, 1)}
    assert probes.values["dead_activations"] == dead | {"layers.2.feedforward": 12 / hidden}


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blockwise"])
@pytest.mark.parametrize("documents", [False, True])
def test_attention_is_that_of_an_explicit_softmax(
    kernel: str, documents: bool, monkeypatch: pytest.MonkeyPatch, tokens: Tensor
) -> None:
    model = aw.build(SPEC.override("attention.mask.kind=window", "attention.mask.size=7"), seed=2)
    model.use_kernel(kernel)
    ids = torch.arange(24).ge(9).long().expand(3, -1) if documents else None
    given: dict[str, tuple[Any, ...]] = {}
    monkeypatch.setattr(
        probes_room,
        "mean_entropy",
        lambda *args: given.setdefault(str(len(given)), args) and mean_entropy(*args),
    )
    with torch.no_grad(), Probes(model) as probes:
        model(tokens, segment_ids=ids)
    assert len(given) == 3
    for i, (q, k, _, _, *more) in enumerate(given.values()):
        scale = more[0].scale
        logits, entropies = [], []
        for head in range(4):
            for t in range(24):
                keys = [s for s in range(24) if t - 7 < s <= t]
                keys = [s for s in keys if not documents or (s >= 9) == (t >= 9)]
                row = k[0, keys, head // 2].double() @ q[0, t, head].double() * scale
                p = row.softmax(-1)
                logits.append(row.max().item())
                entropies.append(-(p * p.log()).sum().item())
        row = f"layers.{i}.attention"
        assert probes.values["attention_logit"][row] == pytest.approx(max(logits), rel=1e-4)
        mean = sum(entropies) / len(entropies)
        assert probes.values["attention_entropy"][row] == pytest.approx(mean, rel=1e-4)


def test_settings_of_scores_count() -> None:
    """Only the last queries are looked at; caps and sinks change weights, but not the raw product."""
    dice = torch.Generator().manual_seed(0)
    length = QUERIES + 40
    q, k = (torch.randn(2, length, heads, 8, generator=dice) * 3 for heads in (4, 2))
    view = AttentionMask(
        MASKS[Window](Window(size=50)), token_layout(torch.zeros(2, length, dtype=torch.long))
    )
    sinks = torch.randn(4, generator=dice)
    slopes = torch.tensor([0.5, 0.1, 0.0, 1.0])
    at = torch.arange(length)[None]
    bias = ElementwiseBias(lambda h, q, k: slopes[h] * (k - q), 4, at, at)
    settings = ScoreMods(0.3, softcap=2.0, bias=bias, sinks=sinks)
    logits, entropies = [], []
    for head in range(4):
        for t in range(40, length):
            raw = k[0, max(0, t - 49) : t + 1, head // 2].double() @ q[0, t, head].double() * 0.3
            capped = 2 * torch.tanh(raw / 2) + slopes[head] * (
                torch.arange(len(raw)) - len(raw) + 1
            )
            p = torch.cat((capped, sinks[head : head + 1].double())).softmax(-1)
            logits.append(raw.max().item())
            entropies.append(-(p * p.log()).sum().item())
    assert largest_logit(q, k, k, view, settings).item() == pytest.approx(max(logits), rel=1e-5)
    found = mean_entropy(q, k, k, view, settings).item()
    assert found == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)
    plain = mean_entropy(q, k, k, view, ScoreMods(0.3))
    assert plain.item() != pytest.approx(found, rel=1e-3)


def test_nothing_is_left_behind(model: aw.Decoder, tokens: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, tokens, optimizer)
    before = parts_of(model)
    with Probes(model, optimizer):
        assert parts_of(model) != before
        step(model, tokens, optimizer)
    after = parts_of(model)
    assert {k: v or None for k, v in after.items()} == {k: v or None for k, v in before.items()}
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_probes_are_gone_after_an_error(model: aw.Decoder) -> None:
    with pytest.raises(ZeroDivisionError), Probes(model):
        _ = 1 / 0
    assert all(not value for key, value in parts_of(model).items() if "hooks" in key)


def test_any_model_has_probes() -> None:
    """What is not there is not measured."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Probes(model, [optimizer]) as probes:
        F.mse_loss(model(torch.ones(5, 3)), torch.zeros(5, 2)).backward()
        optimizer.step()
    assert probes.values.keys() == {"gradient_norm", "weight_rms", "update_ratio"}
    assert list(probes.values["gradient_norm"]) == ["0", "2"]


def test_a_probe_joins_with_a_line(
    model: aw.Decoder, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def largest_output(watch: Watch) -> None:
        for path, block in watch.blocks.items():
            watch.output(block, path, lambda x: x.abs().amax())

    monkeypatch.setitem(PASSES, "largest_output", largest_output)
    with Probes(model) as probes:
        model(tokens)
    assert list(probes.values["largest_output"]) == ["layers.0", "layers.1", "layers.2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["grad_accum_steps=2", "machine.precision=bf16", "model.embedding.dropout=0.1"],
        ["optimizer.kind=muon", "machine.kernel=blockwise", "data.packing=document_mask"],
    ],
)
def test_a_run_with_probes_ends_in_the_same_weights(
    words: list[str], run: RunSpec, tmp_path: Path
) -> None:
    run = run.override(*words)
    plain = train(run, tmp_path / "plain")
    probed = train(run.override("probes.every=2"), tmp_path / "probed")
    assert probed.model_file.read_bytes() == plain.model_file.read_bytes()
    assert timeless(probed) == timeless(plain)
    assert plain.probes() == []
    assert not plain.probes_file.exists()
    assert [record["step"] for record in probed.probes()] == [1, 2, 4, 6]
    for record in probed.probes():
        assert record["values"].keys() == (PASSES | STEPS).keys()
        numbers = [x for rows in record["values"].values() for x in rows.values()]
        assert all(math.isfinite(number) for number in numbers)


@pytest.mark.slow
def test_a_record_belongs_to_its_step(run: RunSpec, tmp_path: Path) -> None:
    """The root of the summed squares of all layers is the gradient's norm in the metrics."""
    folder = train(run.override("probes.every=3"), tmp_path / "probed")
    norms = {record["step"]: record["grad_norm"] for record in timeless(folder)}
    for record in folder.probes():
        whole = math.sqrt(sum(x**2 for x in record["values"]["gradient_norm"].values()))
        assert whole == pytest.approx(norms[record["step"]], rel=1e-5)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_record(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = longer.override("probes.every=2")
    whole = train(longer, tmp_path / "whole")
    at_step(monkeypatch, 8, die)
    with pytest.raises(Died):
        train(longer, tmp_path / "cut")
    assert [record["step"] for record in RunFolder(tmp_path / "cut").probes()] == [1, 2, 4, 6, 8]
    again = train(longer, tmp_path / "cut")
    assert [(r["step"], r["values"]) for r in again.probes()] == [
        (r["step"], r["values"]) for r in whole.probes()
    ]


def test_a_step_that_fails_is_recorded(
    run: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DivergedError):
        train(
            run.override("probes.every=1", "optimizer.lr=1e30", "max_grad_norm=none"),
            tmp_path / "run",
        )
    steps = [record["step"] for record in RunFolder(tmp_path / "run").probes()]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) == len(timeless(RunFolder(tmp_path / "run"))) + 1


def test_a_run_without_probes_attaches_nothing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probes, "__init__", die)
    train(tiny_run(text, "budget=2steps", "evaluate.final_max_tokens=100"), tmp_path / "run")


def test_probes_are_no_part_of_a_run_identity(run: RunSpec) -> None:
    assert run.override("probes.every=5").hash() == run.hash()


def test_of_a_large_batch_some_rows_are_looked_at(session: Session, monkeypatch: Any) -> None:
    """Two rows of 32 tokens, and never less than one."""
    for tokens, rows in ((64, 2), (1, 1), (10_000, 4)):
        monkeypatch.setattr("archwright.training.session.PROBED_TOKENS", tokens)
        seen = []
        monkeypatch.setattr(
            probes_room, "rms", lambda x, seen=seen: seen.append(x.shape) or x.sum()
        )
        assert session.probe(0).values["residual_rms"].keys() == {"embedding", "layers.0"}
        assert seen == [(rows, 32, 32)] * 2
