"""What every part that is registered must do, tested because it is in a table."""

from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from archwright.catalogue import axes as catalogue
from archwright.model import build
from archwright.model.language_model import Output
from archwright.parts.norms import NORMS, RMSNorm
from archwright.plugins import REGISTRIES, register
from archwright.spec import norms
from archwright.spec.choice import Choice
from archwright.spec.feedforward import SparseMixer
from archwright.spec.model_spec import ModelSpec

PATHS = {
    section.name: section.path.removeprefix("model.")
    for section in catalogue.sections()
    if section.kinds and section.path.startswith("model.")
}
"""Where a model names a choice of each axis."""

ENTRIES = [
    pytest.param(choice.axis, choice, id=f"{choice.axis}-{choice.model_fields['kind'].default}")
    for registry in REGISTRIES
    for choice in registry
    if registry.base.axis in PATHS and not choice.is_axis() and choice is not SparseMixer
]
"""Every choice but SparseMixer, which draws in training."""
ALL = pytest.mark.parametrize(("axis", "choice"), ENTRIES)

SMALL = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=12).override(
    "attention.num_heads=2", "attention.num_kv_heads=1"
)
TOKENS = torch.tensor([[1, 5, 5, 31, 0, 2, 9, 9, 3, 4, 30, 7], [3] * 12])


def spec_with(axis: str, choice: type[Choice]) -> ModelSpec:
    kind = choice.model_fields["kind"].default
    words = [f"{PATHS[axis]}.kind={kind}"]
    if axis == "routing":
        words.append("feedforward.kind=experts")
    if axis == "mask" and "size" in choice.model_fields:
        words.append("attention.mask.size=3")
    if axis == "mask" and "radius" in choice.model_fields:
        words.append("attention.mask.radius=3")
    if axis == "cross_attention":
        words.append("encoder.kind=stack")
    if axis == "attention" and "position" not in choice.takes:  # type: ignore[attr-defined]
        words.append("position.kind=none")
    if kind == "transient_global":  # whose sums have no angles
        words += ["position.kind=t5", "attention.block_size=4"]
    if kind == "disentangled":  # whose mask shows both sides by default
        words.append("attention.mask.kind=causal")
    return SMALL.override(*words)


def logits(model: nn.Module, tokens: Tensor = TOKENS, **given: Any) -> Tensor:
    """Return the logits of tokens."""
    return outputs(model, tokens, **given).logits


def outputs(model: nn.Module, tokens: Tensor = TOKENS, **given: Any) -> Output:
    """Return what a model makes of tokens, beside the same source each time where there is an encoder."""
    inputs: tuple[Tensor, ...] = (tokens,)
    if not model.spec.encoder.is_none:  # type: ignore[union-attr]
        inputs = (TOKENS[: len(tokens)].to(tokens.device), tokens)
    found: Output = model(*inputs, **given)
    return found


def test_every_choice_has_its_part() -> None:
    parts = {choice for registry in REGISTRIES for choice in registry}
    for axis in {registry.base.axis: registry.base for registry in REGISTRIES}.values():
        assert {kind for kind, choice in axis.kinds.items() if choice not in parts} <= {"none"}


@ALL
class TestEvery:
    def test_shape_and_dtype(self, axis: str, choice: type[Choice]) -> None:
        model = build(spec_with(axis, choice))
        assert logits(model).shape == (2, 12, 32)
        assert logits(model, TOKENS[:, :1]).shape == (2, 1, 32)
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            assert logits(model.to(dtype)).dtype == dtype

    def test_gradients_are_finite_and_reach_every_parameter(
        self, axis: str, choice: type[Choice]
    ) -> None:
        model = build(spec_with(axis, choice))
        found = outputs(model)
        loss = nn.functional.cross_entropy(
            found.logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()
        )
        if found.sequence_logits is not None:
            loss = loss + nn.functional.cross_entropy(found.sequence_logits, TOKENS[:, 0] % 2)
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name

    def test_weights_are_saved_and_loaded(self, axis: str, choice: type[Choice]) -> None:
        one, other = (build(spec_with(axis, choice), seed=seed) for seed in (0, 1))
        other.load_state_dict(one.state_dict())
        assert torch.equal(logits(one), logits(other))
        assert set(one.state_dict()) == {
            name for name, _ in one.named_parameters(remove_duplicate=False)
        }

    def test_a_model_on_meta_has_the_same_shapes(self, axis: str, choice: type[Choice]) -> None:
        real, meta = (build(spec_with(axis, choice), device=device) for device in ("cpu", "meta"))
        assert {n: p.shape for n, p in meta.named_parameters()} == {
            n: p.shape for n, p in real.named_parameters()
        }
        assert all(p.is_meta for p in (*meta.parameters(), *meta.buffers()))
        assert logits(meta, TOKENS.to("meta")).shape == (2, 12, 32)
        assert meta.num_parameters() == real.num_parameters()

    def test_the_same_seed_builds_the_same_model(self, axis: str, choice: type[Choice]) -> None:
        one, same = (build(spec_with(axis, choice), seed=3) for _ in range(2))
        assert torch.equal(logits(one), logits(same))

    def test_nothing_is_drawn_outside_training(self, axis: str, choice: type[Choice]) -> None:
        model = build(spec_with(axis, choice)).eval()
        assert torch.equal(logits(model), logits(model))

    def test_rows_do_not_speak_to_each_other(self, axis: str, choice: type[Choice]) -> None:
        model = build(spec_with(axis, choice)).double()
        torch.testing.assert_close(logits(model)[:1], logits(model, TOKENS[:1]))

    def test_no_token_sees_what_follows_unless_its_mask_says_so(
        self, axis: str, choice: type[Choice]
    ) -> None:
        model = build(spec_with(axis, choice)).double()
        changed = TOKENS.clone()
        changed[:, 7:] = 8
        same = torch.allclose(logits(model)[:, :7], logits(model, changed)[:, :7], 1e-7, 1e-7)
        assert same == getattr(choice, "causal", True)
        assert not torch.allclose(logits(model)[:, 7:], logits(model, changed)[:, 7:])

    def test_it_says_what_it_is(self, axis: str, choice: type[Choice]) -> None:
        assert choice.__doc__
        assert repr(build(spec_with(axis, choice), device="meta"))


@pytest.mark.parametrize(
    "choice", list(NORMS), ids=lambda choice: choice.model_fields["kind"].default
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_norms_keep_the_dtype_of_their_input(choice: type[norms.Norm], dtype: torch.dtype) -> None:
    norm = NORMS[choice](choice(), 16)
    x = torch.randn(2, 3, 16).to(dtype)
    for narrow in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            assert norm(x).dtype == dtype
    assert norm(x).isfinite().all()
    assert norm(torch.zeros_like(x)).isfinite().all()


@pytest.mark.usefixtures("visitors")
class TestRegister:
    def test_a_choice_has_one_part(self) -> None:
        register(norms.RMSNorm, RMSNorm)  # once more is no harm
        with pytest.raises(ValueError, match="RMSNorm: has its part RMSNorm already"):
            register(norms.RMSNorm, nn.Identity)

    @pytest.mark.parametrize("wrong", [norms.Norm, Choice])
    def test_what_is_no_choice_is_refused(self, wrong: Any) -> None:
        with pytest.raises(
            ValueError, match=r"expected a subclass of one of the axes norm, residual"
        ):
            register(wrong, RMSNorm)

    def test_what_is_no_choice_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(ValueError, match="int: expected a subclass of one of the axes norm"):
            register(int, RMSNorm)  # type: ignore[arg-type]
