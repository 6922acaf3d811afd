"""Tiny models of the published implementations, with random weights large enough that a dropped detail shows."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.model.encoder_decoder import EncoderDecoder
from archwright.model.model import Decoder

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

ENTRIES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "tiny_configs.json").read_text("utf-8")
)
"""A tiny configuration for each family, and kinds of it."""
OUTSIDE = {"rwkv7"}
"""Families of checkpoints whose class is in another library."""
LENGTH = 48
"""Tokens of a text, or the model's limit if that is shorter."""
PADDING = 9
"""Tokens of padding behind the second text."""


def build(name: str, attention: str = "", **changes: Any) -> nn.Module:
    """Return a model of an entry, in eager attention or the one that the library takes, with changes."""
    entry = ENTRIES[name]
    config = transformers.AutoConfig.for_model(
        entry["model_type"], **copy.deepcopy(entry["kwargs"] | changes)
    )
    torch.manual_seed(0)
    model: nn.Module = _auto(entry, config).from_config(
        config, attn_implementation=attention or entry["attention"]
    )
    return model.eval()


def _auto(entry: dict[str, Any], config: Any) -> Any:
    """Return what opens models of an entry: those of two stacks, and encoders, have classes of their own."""
    usual = "Seq2SeqLM" if config.is_encoder_decoder else "CausalLM"
    return getattr(transformers, f"AutoModelFor{entry.get('task', usual)}")


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw matrices from N(0, 1.5^2 / fan_in) and add 0.3 N(0, 1) to all that have one axis, to what
    experts are chosen by, and to what is added to logits: logits then spread by about 1.6. Sines stay what they are."""
    torch.manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        counts = any(
            part in name for part in ("e_score", "expert_bias", "final_logits_bias", "layer_scalar")
        )
        if not (tensor.requires_grad or counts) or name in sines(model):
            continue
        if tensor.ndim >= 2 and tensor.requires_grad and "norm" not in name:
            tensor.normal_(0, 1.5 / tensor.shape[-1] ** 0.5)
        else:
            tensor.add_(0.3 * torch.randn_like(tensor))
    return model


def sines(model: nn.Module) -> set[str]:
    """Return the names of tables of sines, some of which the library counts as parameters."""
    modules = model.named_modules()
    return {f"{name}.weight" for name, m in modules if "Sinusoidal" in type(m).__name__}


def batch(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return two texts, and where their tokens are real."""
    config = model.config
    limit = getattr(config, "max_position_embeddings", LENGTH)
    length = min(LENGTH, limit) if limit and limit > 0 else LENGTH
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, config.vocab_size, (2, length), generator=generator)
    tokens[tokens == getattr(config, "pad_token_id", None)] = (
        3  # which some models give no gradient
    )
    real = torch.ones(2, length, dtype=torch.bool)
    # To BigBird's blocks padding is a part of the text, whose last block they all see.
    if getattr(config, "attention_type", "") != "block_sparse":
        real[1, -PADDING:] = False
    return tokens, real


def inputs(model: nn.Module, tokens: Tensor, real: Tensor) -> dict[str, Any]:
    """Return what the library's model reads; in a model of two stacks, each text is the source of the other."""
    mask = {"input_ids": tokens, "attention_mask": real.long()}
    if hasattr(
        model.config, "attention_window"
    ):  # of Longformer's models, which are told what is global
        mask["global_attention_mask"] = torch.zeros_like(tokens)
        mask["global_attention_mask"][:, : getattr(model.config, "num_global_tokens", 1)] = 1
    if not model.config.is_encoder_decoder:
        return mask
    return {**mask, "decoder_input_ids": tokens.flip(0), "use_cache": False}


def logits(model: nn.Module, tokens: Tensor, real: Tensor) -> Tensor:
    """Return the library's logits; one of each token where replaced tokens are found, on an axis of its own."""
    out: Tensor = model(**inputs(model, tokens, real)).logits
    return out if out.ndim == 3 else out[..., None]


def own_logits(model: Decoder, tokens: Tensor, real: Tensor) -> Tensor:
    """Return our logits of the same."""
    targets = (tokens.flip(0),) if isinstance(model, EncoderDecoder) else ()
    return model(tokens, *targets, padding_mask=real).logits


def own_loss(model: Decoder, tokens: Tensor, labels: Tensor, real: Tensor) -> Tensor:
    """Return our loss of labels at their own places."""
    targets = (tokens.flip(0),) if isinstance(model, EncoderDecoder) else ()
    out = model(tokens, *targets, padding_mask=real)
    return F.cross_entropy(out.logits.flatten(0, 1), labels.flatten())


def save(model: nn.Module, folder: Path) -> Path:
    """Write a model as the library publishes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


def reopen(folder: Path, like: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
    """Return the library's model of a folder, and what was not right about its keys."""
    model, info = type(like).from_pretrained(  # type: ignore[attr-defined]
        folder,
        attn_implementation=like.config._attn_implementation,
        dtype=torch.float32,
        output_loading_info=True,
    )
    return model.eval(), {key: value for key, value in info.items() if value}
