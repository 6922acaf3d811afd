"""Mixers and positions from outside the package do all that those of the package do, with no change to it."""

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from archwright.catalogue.diagram import diagram
from archwright.catalogue.table import row_of
from archwright.cli import main
from archwright.model import Decoder, build
from archwright.planning.cost import flops_per_token
from archwright.planning.memory import cache_bytes
from archwright.runs import RunFolder
from archwright.scale.cuts import cut_axes, own_part, share_sizes
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.scale_down import tiny
from tests.laws.laws import LAWS, Case
from tests.tiny import tiny_words, write_text

HERE = Path(__file__).parent
SMALL = ModelSpec(dim=32, num_layers=2, vocab_size=64, context_length=24)
WORDS = {
    "differential": ["attention.kind=differential", "attention.num_heads=2"],
    "gated_delta": ["recurrence.kind=gated_delta", "attention.kind=none", "position.kind=none"],
    "hybrid": ["recurrence.kind=gated_delta", "residual.multiplier.recurrence=0.5"],
    "xpos": ["position.kind=xpos", "position.scale_base=8", "attention.num_heads=2"],
}
FILES = {"hybrid": "gated_delta"}
"""A recurrence beside attention is the same file, asked for otherwise."""
FULL = {name: ["attention.mask.kind=full"] for name in ("differential", "xpos", "hybrid")}
"""So that the reference kernel computes no pair of tokens that no query sees."""
ALL = pytest.mark.parametrize("name", WORDS)
pytestmark = pytest.mark.usefixtures("visitors")


def file_of(name: str) -> Path:
    return HERE / f"{FILES.get(name, name)}.py"


def spec_of(name: str, *words: str) -> ModelSpec:
    runpy.run_path(str(file_of(name)), run_name=FILES.get(name, name))
    return SMALL.override(*WORDS[name], *words)


@pytest.mark.slow
@ALL
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_it_is_lawful(name: str, law: Any) -> None:
    for seed in range(2):
        law(Case(spec_of(name), seed))


@ALL
def test_its_flops_are_counted(name: str) -> None:
    model = build(spec_of(name, *FULL.get(name, []))).use_kernel("eager")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 12, dtype=torch.long))
    assert counter.get_total_flops() == pytest.approx(24 * flops_per_token(model, 12) / 3, rel=0.02)


@ALL
def test_it_is_scaled_down_and_in_the_table(name: str) -> None:
    spec = spec_of(name, "dim=256")
    heads = dict(spec.attention).get("num_heads")
    small = tiny(spec)
    assert build(small)(torch.zeros(1, 5, dtype=torch.long)).logits.isfinite().all()
    assert [*small.mixers] == [*spec.mixers]
    if heads == 2:  # at a quarter of the width, with heads of 16
        assert dict(small.attention)["num_heads"] == 4
    shown = row_of(spec).cells["heads"]
    assert shown == {"differential": "2 differential", "gated_delta": "gated delta"}.get(
        name, shown
    )


@ALL
def test_the_bytes_of_its_state_are_those_of_the_tensors(name: str) -> None:
    model, length = build(spec_of(name)), 100
    cache = model.new_cache()
    model(torch.zeros(1, length, dtype=torch.long), cache=cache)
    slot = cache_bytes(model, 2, 4) - cache_bytes(model, 1, 4)  # a cache of keys has one more
    assert cache.num_bytes == cache_bytes(model, length, 4) + slot


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@ALL
def test_it_trains_resumes_and_writes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(Path("text.txt"), 100)
    parts = ["--parts", str(file_of(name))]
    words = [f"model.{word}" for word in WORDS[name]]
    few = ("budget=4steps", "evaluate.final_max_tokens=50", "data.packing=document_mask")
    shape = [w for w in tiny_words("text.txt", *few) if not w.startswith("model.attention.num_")]
    assert main([*shape, *words, *parts, "--quiet"]) == 0
    whole = RunFolder("runs/modern").metrics()
    assert (
        main(["generate", "runs/modern", *parts, "--max-new-tokens", "5", "--prompt", "the"]) == 0
    )
    axis, _, kind = WORDS[name][0].partition(".kind=")
    capsys.readouterr()
    assert main(["list", "choices", kind, *parts]) == 0
    assert f"{axis}: {kind}\n" in capsys.readouterr().out
    assert [record["loss"] for record in whole if "loss" in record]


@pytest.mark.slow
@ALL
def test_it_takes_part_in_compare(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(Path("text.txt"), 2500)
    variant = ":".join(["", *(f"model.{word}" for word in WORDS[name])])
    base = [w for w in tiny_words("text.txt")[2:] if not w.startswith("model.attention.num_")]
    words = ["compare", "modern", variant, *base, "--parts", str(file_of(name))]
    few = ["--seeds", "2", "--budget", "3steps", "--no-tune-lr", "--match", "parameters", "--quiet"]
    assert main([*words, *few]) == 0, capsys.readouterr().err
    assert list(Path("studies").glob("*/report.html"))


def gated_delta(length: int) -> tuple[Any, Tensor, dict[str, Tensor]]:
    """Return a mixer in float64, tokens, and what enters its scan, with torch's own convolution."""
    mixer: Any = next(build(spec_of("gated_delta"), seed=3).mixers()).double()
    x = torch.randn(2, length, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v, z, a, b = (m(3 * x) for m in mixer.inputs)
    convs = (mixer.query_conv, mixer.key_conv, mixer.value_conv)
    q, k, v = (
        F.silu(F.conv1d(F.pad(y.mT, (3, 0)), conv.weight, groups=y.shape[-1]).mT)
        for y, conv in zip((q, k, v), convs, strict=True)
    )
    g = -mixer.log_rate.exp() * F.softplus(a + mixer.decay_bias)
    heads = {n: y.unflatten(-1, (2, -1)) for n, y in {"q": q, "k": k, "v": v, "z": z}.items()}
    return mixer, 3 * x, {**heads, "g": g, "beta": b.sigmoid()}


def test_the_gated_delta_rule_is_its_formula() -> None:
    """Yang et al. (2024), equation 10, token by token: S_t = a S_(t-1) (I - b k k^T) + b v k^T."""
    mixer, x, given = gated_delta(70)
    q, k = (given[n] / given[n].norm(dim=-1, keepdim=True) for n in "qk")
    state = torch.zeros(2, 2, 16, 16, dtype=x.dtype)  # [batch, heads, value, key]
    outs = []
    for t in range(70):
        key, beta = k[:, t, :, :, None], given["beta"][:, t, :, None, None]
        forgets = torch.eye(16, dtype=x.dtype) - beta * key @ key.mT
        state = given["g"][:, t].exp()[..., None, None] * state @ forgets
        state = state + beta * given["v"][:, t, :, :, None] @ key.mT
        outs.append((state @ q[:, t, :, :, None])[..., 0] / 4)
    expected = mixer.out((mixer.norm(torch.stack(outs, 1)) * F.silu(given["z"])).flatten(-2))
    torch.testing.assert_close(mixer(x, _context(x)), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("rule", ["recurrent", "chunk"])
def test_the_gated_delta_rule_is_that_of_transformers(rule: str) -> None:
    library = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    mixer, x, given = gated_delta(150)
    z = given.pop("z")
    function = getattr(library, f"torch_{rule}_gated_delta_rule")
    mixer.norm.eps = 0.0
    o, _ = function(
        *(given[n].float() for n in ("q", "k", "v", "g", "beta")),
        initial_state=None,
        output_final_state=False,
        use_qk_l2norm_in_kernel=True,
    )
    expected = mixer.out((mixer.norm(o.double()) * F.silu(z)).flatten(-2))
    torch.testing.assert_close(mixer(x, _context(x)), expected, rtol=1e-3, atol=1e-4)


def test_two_ranks_share_the_heads_of_a_recurrence() -> None:
    """The sum of their results is that of the whole mixer, also of a text in two pieces."""
    mixer, x, _ = gated_delta(20)
    pieces, total = (x[:, :13], x[:, 13:]), torch.zeros_like(x)
    for rank in range(2):
        part = copy.deepcopy(mixer)
        for tensor, axis in cut_axes(part):
            tensor.data = own_part(tensor.data, axis, 2, rank)
        share_sizes(part, 2)
        state = part.new_state(2)
        outs = [part(piece, _context(piece), state) for piece in pieces]
        assert state.num_bytes == 2 * part.state_bytes(20, 8) == mixer.state_bytes(20, 8)
        total += torch.cat(outs, 1)
    torch.testing.assert_close(total, mixer(x, _context(x)), rtol=1e-10, atol=1e-11)


def test_positions_that_a_mixer_ignores_are_refused() -> None:
    runpy.run_path(str(HERE / "running_mean.py"), run_name="running_mean")
    with pytest.raises(UserError, match='found "rope", which acts inside attention'):
        build(SMALL.override("attention.kind=running_mean", "position.kind=rope"))
    with pytest.raises(UserError, match='found "rope", which acts inside attention'):
        build(spec_of("gated_delta").override("position.kind=rope"))


def test_branches_side_by_side_read_the_same_norm_and_are_added() -> None:
    spec = spec_of("hybrid", "num_layers=1", "feedforward.kind=none")
    model = build(spec).double()
    (layer,) = model.stack
    assert layer.branches == ("attention", "recurrence")
    assert [*layer.residual.norms] == ["attention"]
    x = torch.randn(2, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h = layer.residual.norms["attention"](x)
    attention, recurrence = (mixer(h, _context(x)) for mixer in model.mixers())
    torch.testing.assert_close(layer(x), x + attention + 0.5 * recurrence)
    assert "(attention + recurrence × 0.5)" in diagram(spec.resolved(), "RMSNorm")[0]


def _context(x: Tensor) -> Any:
    from archwright.parts.context import Context

    return Context.alone(x)


def test_a_mixer_without_a_state_reads_texts_whole() -> None:
    runpy.run_path(str(HERE / "running_mean.py"), run_name="running_mean")
    model = build(SMALL.override("attention.kind=running_mean", "position.kind=none"))
    assert isinstance(model, Decoder)
    assert not model.can_cache
    with pytest.raises(UserError, match="RunningMeanAttention keeps nothing of what it has read"):
        model.new_cache()
