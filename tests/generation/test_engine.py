"""The fast path for one further token gives the logits of the model, or declines."""

import pytest
import torch
from torch import Tensor

from archwright.generation.engine import Engine
from archwright.generation.reader import Reader
from archwright.model import build
from archwright.model.model import Decoder
from archwright.model.quantisation import quantise
from archwright.spec.read import load, preset_names

ACCEPTED = """modern llama-3-8b mistral-7b qwen-2.5-7b qwen-3-8b gemma-2b gemma-3-4b olmo-2-13b smollm3-3b gpt-2
opt-1.3b"""
"""Some of those that must not lose it."""


def tiny(name: str) -> Decoder:
    spec = load(name).tiny().override("vocab_size=128", "context_length=64")
    model, dice = build(spec, seed=0).eval(), torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases begin as zeros
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=dice)
    return model


def both(
    model: Decoder, steps: int = 24, lengths: tuple[int, ...] = (9, 9)
) -> list[tuple[Tensor, Tensor]]:
    """Return logits of the engine beside those of the model."""
    dice = torch.Generator().manual_seed(0)
    text = torch.randint(0, 128, (len(lengths), 9 + steps), generator=dice)
    fast, slow = Reader(model), Reader(model)
    assert fast._engine is not None
    slow._engine = None
    for reader in (fast, slow):
        reader.read_prompts([row[:n] for row, n in zip(text, lengths, strict=True)])
        reader.reorder(torch.arange(len(lengths)).flip(0))
    return [
        (fast.read_rows(text[:, n : n + 1]), slow.read_rows(text[:, n : n + 1]))
        for n in range(9, 9 + steps)
    ]


@pytest.mark.parametrize("name", preset_names("models"))
@torch.inference_mode()
def test_every_preset_is_declined_or_equal(name: str) -> None:
    model = tiny(name)
    if not Engine.accepts(model):
        assert name not in ACCEPTED.split()
        return
    for fast, slow in both(model):
        assert torch.allclose(fast, slow, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ACCEPTED.split())
@torch.inference_mode()
def test_texts_of_unequal_length(name: str) -> None:
    """Beyond the window and the context, too."""
    for fast, slow in both(tiny(name), 80, (3, 9, 1)):
        assert torch.allclose(fast, slow, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weights", ["plain", "int8", "int4"])
@pytest.mark.parametrize("name", ["modern", "gemma-3-4b", "gpt-2"])
@torch.inference_mode()
def test_narrow_weights(name: str, weights: str) -> None:
    model = tiny(name).bfloat16()
    if weights != "plain":
        quantise(model, weights)  # type: ignore[arg-type]
    for fast, slow in both(model):
        # bfloat16 has 8 bits, and some sums are in another order.
        assert (fast - slow).float().norm() <= 0.02 * slow.float().norm()


@torch.inference_mode()
def test_observed_models_and_autocast_take_the_ordinary_way() -> None:
    model = tiny("modern")
    handle = model.layers[0].register_forward_hook(lambda *_: None)
    assert not Engine.accepts(model)
    handle.remove()
    assert Engine.accepts(model)
    reader = Reader(model)
    reader.read(torch.tensor([1, 2]))
    with torch.autocast("cpu", torch.bfloat16):
        assert reader.read(torch.tensor([3])).dtype == torch.bfloat16
