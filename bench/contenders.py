"""Trainers of one Llama-shaped model: archwright, and its peers, each as its users would write the step.

Each contender takes (tokens, targets) and returns the loss of a whole step: forward, cross-entropy, backward,
clipping at 1, fused AdamW. Peers are imported where they are asked for.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.machine.compiling import work_around_compiler_bugs

if TYPE_CHECKING:
    from archwright.spec.model_spec import ModelSpec

LR = 3e-4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Step = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped model with a tied head, and its batch."""

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_dim: int
    vocab_size: int
    batch_size: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_size * self.length

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads


SHAPES = {
    "0.9M": Shape(128, 4, 2, 1, 320, 2048, 16, 256),
    "3.4M": Shape(192, 6, 6, 6, 512, 4096, 16, 256),
    "29.9M": Shape(512, 8, 8, 8, 1408, 8192, 8, 512),
}


def llama_spec(shape: Shape) -> "ModelSpec":
    """Return the spec of ours."""
    from archwright.spec.read import load

    return load("modern").override(
        f"dim={shape.dim}",
        f"num_layers={shape.num_layers}",
        f"attention.num_heads={shape.num_heads}",
        f"attention.num_kv_heads={shape.num_kv_heads}",
        f"feedforward.hidden_dim={shape.hidden_dim}",
        f"vocab_size={shape.vocab_size}",
        f"context_length={shape.length}",
        "head.tied=true",
    )


def archwright_step(shape: Shape, precision: str, compiled: bool) -> Step:
    """Return ours, with the settings that `archwright train` takes on a CPU."""
    from archwright.data.inputs import Batch, Inputs
    from archwright.machine.compiling import compile_parts
    from archwright.machine.precision import Precision
    from archwright.model import build
    from archwright.optim import build_optimizers
    from archwright.spec.optimizers import AdamW
    from archwright.training.step import train_step

    model = build(llama_spec(shape), seed=0).train()
    if compiled:
        compile_parts(model, "block", whole_loss=True)
    optimizers = build_optimizers(model, AdamW(lr=LR))
    of_step = Precision(precision, torch.device("cpu"))

    def step(tokens: Tensor, targets: Tensor) -> float:
        batch = Batch(Inputs(tokens), targets)
        return train_step(
            model, batch, optimizers, lr_scale=1.0, precision=of_step, max_grad_norm=1.0
        ).loss

    return step


def transformers_model(shape: Shape) -> nn.Module:
    """Return transformers' Llama, with scaled-dot-product attention."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=shape.dim,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.hidden_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config)


def litgpt_model(shape: Shape) -> nn.Module:
    """Return litgpt's Llama, with its head tied."""
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        name="bench",
        block_size=shape.length,
        vocab_size=shape.vocab_size,
        padded_vocab_size=shape.vocab_size,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        n_query_groups=shape.num_kv_heads,
        n_embd=shape.dim,
        intermediate_size=shape.hidden_dim,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=1e-5,
        mlp_class_name="LLaMAMLP",
    )
    model = GPT(config)
    model.apply(model._init_weights)
    model.lm_head.weight = model.transformer.wte.weight
    return model


def x_transformers_model(shape: Shape) -> nn.Module:
    """Return x-transformers' decoder with the same choices."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.dim,
        depth=shape.num_layers,
        heads=shape.num_heads,
        attn_dim_head=shape.head_dim,
        attn_kv_heads=shape.num_kv_heads,
        attn_flash=True,
        rotary_pos_emb=True,
        use_rmsnorm=True,
        ff_swish=True,
        ff_glu=True,
        ff_no_bias=True,
        ff_mult=shape.hidden_dim / shape.dim,
    )
    return TransformerWrapper(
        num_tokens=shape.vocab_size,
        max_seq_len=shape.length,
        tie_embedding=True,
        use_abs_pos_emb=False,
        attn_layers=layers,
    )


class PlainLayer(nn.Module):
    """A layer as a plain script has it: fused projections and scaled-dot-product attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.num_kv_heads * shape.head_dim
        self.norms = nn.ModuleList(nn.RMSNorm(shape.dim, eps=1e-5) for _ in range(2))
        self.qkv = nn.Linear(shape.dim, shape.dim + 2 * kv, bias=False)
        self.out = nn.Linear(shape.dim, shape.dim, bias=False)
        self.gate_up = nn.Linear(shape.dim, 2 * shape.hidden_dim, bias=False)
        self.down = nn.Linear(shape.hidden_dim, shape.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s = self.shape
        kv = s.num_kv_heads * s.head_dim
        q, k, v = self.qkv(self.norms[0](x)).split([s.dim, kv, kv], -1)
        q, k, v = (t.unflatten(-1, (-1, s.head_dim)).transpose(1, 2) for t in (q, k, v))
        q, k = (t * cos + torch.cat(t.chunk(2, -1)[::-1], -1) * sin for t in (q, k))
        shared = s.num_kv_heads != s.num_heads
        y = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True, enable_gqa=shared)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class PlainModel(nn.Module):
    """A Llama in fifty lines, in the manner of nanoGPT."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(PlainLayer(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.dim, eps=1e-5)
        half = torch.arange(shape.head_dim // 2) * 2 / shape.head_dim
        angles = torch.arange(shape.length)[:, None] * 10_000.0**-half
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), -1))
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embedding.weight)


MODELS: dict[str, Callable[[Shape], nn.Module]] = {
    "transformers": transformers_model,
    "litgpt": litgpt_model,
    "x-transformers": x_transformers_model,
    "plain": PlainModel,
}
"""The peers' models."""


def peer_step(name: str, shape: Shape, precision: str, compiled: bool) -> Step:
    """Return a peer's step at its best: autocast, fused AdamW."""
    torch.manual_seed(0)
    model = MODELS[name](shape).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        found = model(tokens)
        logits = found if isinstance(found, Tensor) else found.logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    if compiled:
        work_around_compiler_bugs()  # or its gradients may be garbage
    run = torch.compile(loss_of) if compiled else loss_of

    def step(tokens: Tensor, targets: Tensor) -> float:
        with autocast(precision):
            loss = run(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def contender(name: str, shape: Shape, precision: str) -> Step:
    """Return the step of a contender by name, with ", compiled" behind it if so."""
    plain, _, compiled = name.partition(", ")
    if plain == "archwright":
        return archwright_step(shape, precision, bool(compiled))
    return peer_step(plain, shape, precision, bool(compiled))


def autocast(precision: str) -> torch.autocast | nullcontext[None]:
    """Return the context of a precision."""
    return nullcontext() if precision == "fp32" else torch.autocast("cpu", DTYPES[precision])
