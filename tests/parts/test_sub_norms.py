"""Norms before the projections that end a branch, beside the library's BitNet with the same weights."""

import pytest
import torch

from archwright.model import build
from archwright.spec.model_spec import ModelSpec

NAMES = {
    "embed_tokens": "embedding",
    "input_layernorm": "residual.norms.attention",
    "post_attention_layernorm": "residual.norms.feedforward",
    **{
        f"self_attn.{theirs}_proj": f"attention.{ours}"
        for theirs, ours in zip("qkvo", ("query", "key", "value", "out"), strict=True)
    },
    "self_attn.attn_sub_norm": "attention.out_norm",
    **{f"mlp.{name}_proj": f"feedforward.{name}" for name in ("gate", "up", "down")},
    "mlp.ffn_sub_norm": "feedforward.norm",
}


def test_bitnet() -> None:
    library = pytest.importorskip("transformers.models.bitnet.modeling_bitnet")
    config = library.BitNetConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=32,
        hidden_act="silu",
        tie_word_embeddings=True,
    )
    theirs = library.BitNetForCausalLM(config).eval()
    dice = torch.Generator().manual_seed(0)
    for tensor in theirs.parameters():
        noise = torch.randn(tensor.shape, generator=dice)
        if tensor.ndim < 2:
            tensor.data += 0.3 * noise
        else:
            tensor.data.copy_(1.5 * noise * tensor.shape[-1] ** -0.5)
    spec = ModelSpec(dim=16, num_layers=2, vocab_size=32).override(
        "attention.num_heads=4",
        "attention.num_kv_heads=2",
        "attention.out_norm.kind=rms",
        f"attention.out_norm.eps={config.rms_norm_eps}",
        "feedforward.hidden_dim=24",
        "feedforward.hidden_norm.kind=rms",
        f"feedforward.hidden_norm.eps={config.rms_norm_eps}",
        f"norm.eps={config.rms_norm_eps}",
        f"position.theta={config.rope_parameters['rope_theta']}",
        "head.tied=true",
    )
    state = {}
    for name, tensor in theirs.model.state_dict().items():
        for old, new in NAMES.items():
            name = name.replace(f"{old}.", f"{new}.")
        state[name] = tensor
    model = build(spec)
    model.load_state_dict(state | {"head.weight": state["embedding.weight"]})
    tokens = torch.randint(32, (2, 11), generator=dice)
    with torch.no_grad():
        found, expected = model(tokens).logits, theirs(tokens).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * expected.std().item())
