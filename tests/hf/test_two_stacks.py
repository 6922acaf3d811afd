"""Checkpoints of models of two stacks: what files of T5 and its line have beside what all have."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from archwright import hf
from archwright.hf.exporting import exportable, fit
from archwright.hf.families.t5 import SWITCH_TRANSFORMERS, T5, UMT5
from archwright.hf.verifying import verify
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from tests.hf.library import batch, build, logits, own_logits, randomise, reopen, save, transformers

WEIGHTS = "model.safetensors"


EXACT = 1e-9
"""Difference of two float64 computations up to which they agree; scores without a scale make float32 coarse."""


@pytest.fixture(autouse=True)
def _float64_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's norm takes its mean in float32, whatever it gets."""
    from transformers.models.switch_transformers import modeling_switch_transformers
    from transformers.models.t5 import modeling_t5

    def forward(norm: nn.Module, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)

    for norm in (modeling_t5.T5LayerNorm, modeling_switch_transformers.SwitchTransformersLayerNorm):
        monkeypatch.setattr(norm, "forward", forward)


def apart(theirs: nn.Module, ours: hf.Loaded) -> float:
    """Return the largest difference of two logits, in float64."""
    tokens, real = batch(theirs)
    exact = copy.deepcopy(theirs).double()
    with torch.no_grad():
        found = own_logits(ours.model.double(), tokens, real) - logits(exact, tokens, real)
    ours.model.float()
    return float(found[real].abs().max())


def test_a_head_of_its_own_is_kept_and_its_logits_are_not_scaled(tmp_path: Path) -> None:
    """T5 v1.1, as published: a config that ties nothing, and a table for the head in the file."""
    theirs = build("t5_v1_1")
    theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.detach().clone())
    randomise(theirs)
    ours = hf.load(save(theirs, tmp_path / "in"))
    head = ours.spec.head
    assert (head.tied, head.logit_scale) == (False, 1.0)
    assert apart(theirs, ours) < EXACT
    hf.save(ours.model, tmp_path / "out")
    back, wrong = reopen(tmp_path / "out", theirs)
    assert not wrong
    assert apart(back, ours) < EXACT
    assert T5.spec({"tie_word_embeddings": False}).head == T5.spec(T5.config(ours.spec)).head


def test_old_files_repeat_tables_and_hold_one_that_nothing_reads(tmp_path: Path) -> None:
    theirs = randomise(build("t5"))
    file = save(theirs, tmp_path) / WEIGHTS
    tensors = load_file(file)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[unread] = torch.ones(32, 4)
    save_file(tensors, file, {"format": "pt"})
    assert apart(theirs, hf.load(tmp_path)) < EXACT
    del tensors["shared.weight"]  # whose values stand under the other names too
    save_file(tensors, file, {"format": "pt"})
    assert apart(theirs, hf.load(tmp_path)) < EXACT


def test_stacks_may_differ_in_depth(tmp_path: Path) -> None:
    theirs = randomise(build("t5", num_layers=1, num_decoder_layers=3))
    ours = hf.load(save(theirs, tmp_path))
    assert ours.spec.encoder_model is not None
    assert (ours.spec.encoder_model.num_layers, ours.spec.num_layers) == (1, 3)
    assert apart(theirs, ours) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "umt5", "switch_transformers", "t5gemma"])
def test_they_are_verified_and_go_through_runs(name: str, tmp_path: Path) -> None:
    theirs = randomise(build(name))
    with torch.no_grad():
        for key, matrix in theirs.named_parameters():
            if key.endswith(
                ".q.weight"
            ):  # scores of the usual size, which float32 has exactly enough
                matrix.mul_(0.25)
    folder = save(theirs, tmp_path / "in")
    certificate = verify(folder)
    assert certificate.agrees
    assert certificate.comparisons[0].first is None  # in float32
    _, model = hf.import_run(folder, tmp_path / "run")
    assert hf.export_run(tmp_path / "run", tmp_path / "out") == name
    again = hf.load(tmp_path / "out").model.state_dict()
    assert all(torch.equal(again[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj: found 'gated-tanh'"),
        ({"is_decoder": True}, "is_decoder: found True"),
        ({"num_layers": 0, "num_decoder_layers": 2}, "found 0 layers; expected 1 to 100,000"),
    ],
)
def test_what_is_not_here_is_refused_by_its_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        T5.spec(config)


@pytest.mark.parametrize("path", ["encoder.norm.eps=0.01", "encoder.attention.head_dim=32"])
def test_stacks_that_differ_where_a_config_has_one_word_are_not_written(path: str) -> None:
    spec = T5.spec({"d_model": 64, "num_heads": 2})
    assert exportable(spec) is T5
    with pytest.raises(UserError, match=path.replace("=", " = ")):
        exportable(spec.override(path), "t5")


def test_experts_that_are_full_pass_by_what_comes_later(tmp_path: Path) -> None:
    theirs = randomise(build("switch_transformers", expert_capacity=6))
    ours = hf.load(save(theirs, tmp_path))
    tokens, real = batch(theirs)
    with torch.no_grad():
        expected = logits(theirs, tokens, real)[real]
        found = own_logits(ours.model, tokens, real)[real]
        roomy = hf.load(save(randomise(build("switch_transformers")), tmp_path / "roomy")).model
        assert (own_logits(roomy, tokens, real)[real] - expected).abs().max() > 0.1
    assert (found - expected).abs().max() < 2e-5
    assert SWITCH_TRANSFORMERS.config(ours.spec)["expert_capacity"] == 6


def kinds(spec: ModelSpec | None) -> list[str]:
    assert spec is not None
    return [spec.layer(i).feedforward.kind for i in range(spec.num_layers)]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 12])
def test_sparse_layers_stand_where_the_class_has_them(number: int) -> None:
    """As many as the config says and, by its arithmetic, one at least."""
    counts = {"num_layers": 12, "num_sparse_encoder_layers": number}
    theirs = transformers.AutoConfig.for_model("switch_transformers", **counts)
    step = theirs.encoder_sparse_step
    expected = ["experts" if i % step == 1 or step == 1 else "relu" for i in range(12)]
    spec = SWITCH_TRANSFORMERS.spec(counts)
    assert kinds(spec.encoder_model) == expected
    assert kinds(spec) == ["relu", "experts", "relu", "relu"] * 3
    assert not fit(spec, SWITCH_TRANSFORMERS).blocking


def test_stacks_of_other_sizes_have_tables_of_their_own(tmp_path: Path) -> None:
    """T5Gemma 9B-2B reads with a wider stack than it writes with."""
    theirs = randomise(build("t5gemma_unlike"))
    ours = hf.load(save(theirs, tmp_path)).model
    assert ours.num_parameters() == sum(p.numel() for p in theirs.parameters())
    tables = {n: tuple(p.shape) for n, p in ours.named_parameters() if "embedding" in n}
    assert tables == {"encoder.embedding.weight": (160, 96), "embedding.weight": (128, 64)}
    masks = [kind.attention for kind in ours.encoder.spec.layers_by_kind.values()]  # type: ignore[attr-defined]
    assert {m.mask.kind for m in masks} == {"symmetric_window", "full"}


def test_layers_share_their_distances_or_not() -> None:
    spec = T5.spec({})
    shared = [spec.position, spec.encoder_model and spec.encoder_model.position]
    assert [p.is_shared for p in shared if p] == [True, True]
    own = UMT5.spec({})
    assert own.encoder_model is not None
    assert not own.position.is_shared
    assert not own.encoder_model.position.is_shared
