"""The number of parameters of a model, from its spec alone: formulas, no modules."""

from functools import singledispatch

from archwright.spec import norms, positions, residuals
from archwright.spec.attention import LatentAttention, SoftmaxAttention
from archwright.spec.choice import Choice
from archwright.spec.embeddings import DenseTransform, Transform
from archwright.spec.feedforward import XIELU, Experts, Hidden
from archwright.spec.model_spec import LayerSpec, ModelSpec


def count(spec: ModelSpec) -> int:
    """Return the number of parameters of a resolved spec."""
    d, vocab = spec.dim, int(spec.vocab_size)
    width = int(spec.embedding.dim)
    total = vocab * width + norm(spec.embedding.norm, d) + spec.embedding.bias * d
    total += d * width if width != d else 0  # into the stream
    total += head_in(spec.head.transform, d, width)
    if not spec.head.tied:
        total += vocab * width
    if spec.head.bias:
        total += vocab
    if isinstance(spec.position, positions.Learned):
        total += (spec.context_length + spec.position.offset) * d
    layers = [spec.layer(i) for i in range(spec.num_layers)]
    total += sum(layer(each, d) for each in layers)
    total += sum(shared_tables(layers))
    if not isinstance(layers[-1].residual, residuals.PostNorm | residuals.DeepNorm):
        total += norm(spec.norm, d)
    return total


def head_in(transform: Transform, d: int, width: int) -> int:
    """Return the number of parameters between the stream and the head's table."""
    if isinstance(transform, DenseTransform):
        return width * (d + transform.bias) + norm(transform.norm, width)
    return d * width if width != d else 0


def layer(each: LayerSpec, d: int) -> int:
    """Return the number of parameters of one layer, shared tables left out."""
    branches = []
    if each.attention.kind != "none":
        branches.append(mixer(each.attention, each, d))
    if each.feedforward.kind != "none":
        branches.append(feedforward(each.feedforward, d))
    num_norms = len(branches)
    if isinstance(each.residual, residuals.SandwichNorm):
        num_norms *= 2
    if isinstance(each.residual, residuals.Parallel) and each.residual.num_norms == 1:
        num_norms = 1
    if isinstance(each.residual, residuals.PreNorm):
        skip_norm = getattr(each, each.residual.skip_norm, None)
        num_norms -= skip_norm is not None and skip_norm.kind != "none"
    return sum(branches) + num_norms * norm(each.norm, d)


@singledispatch
def mixer(choice: Choice, each: LayerSpec, d: int) -> int:
    """Return the parameters of a choice of attention; a new one registers its formula."""
    raise NotImplementedError(f"no closed formula for {type(choice).__name__}: mixer.register it")


@mixer.register
def softmax_attention(a: SoftmaxAttention, each: LayerSpec, d: int) -> int:
    head_dim, value_dim = int(a.head_dim), int(a.value_head_dim)
    width, kv = int(a.num_heads) * head_dim, int(a.num_kv_heads) * head_dim
    mixed, values = int(a.num_heads) * value_dim, int(a.num_kv_heads) * value_dim
    total = d * (width + kv + values) + mixed * d
    total += a.bias.query * width + a.bias.key * kv + a.bias.value * values + a.bias.out * d
    total += {"none": 0, "head": d * int(a.num_heads), "value": d * mixed}[a.gate]
    total += int(a.num_heads) if a.sinks else 0
    over = {"head": (head_dim, head_dim), "projection": (width, kv), "per_head": (width, kv)}
    total += sum(norm(a.qk_norm, n) for n in over[a.qk_norm_over]) + norm(a.v_norm, value_dim)
    total += norm(a.out_norm, mixed)
    return total + position(each, d, int(a.num_heads), width)


@mixer.register
def latent_attention(a: LatentAttention, each: LayerSpec, d: int) -> int:
    heads, rank, rope = int(a.num_heads), int(a.kv_rank), int(a.rope_head_dim)
    nope, value = int(a.nope_head_dim), int(a.value_head_dim)
    queries = d * heads * (nope + rope)
    if a.query_rank != "none":
        queries = a.query_rank * (d + heads * (nope + rope) + a.bias.query_down)
        queries += norm(a.norm, a.query_rank)
    keys = (d + a.bias.latent) * rank + norm(a.norm, rank) + (d + a.bias.rope_key) * rope
    total = queries + keys + rank * heads * (nope + value) + (heads * value + a.bias.out) * d
    return total + position(each, d, heads, heads * (nope + rope))


def position(each: LayerSpec, d: int, num_heads: int, width: int) -> int:
    """Return the parameters of positions that a layer has to itself."""
    match each.position:
        case positions.TransformerXL():
            return d * width + 2 * width
        case positions.T5Bias(shared=False, num_buckets=num_buckets):
            return num_buckets * num_heads
    return 0


@singledispatch
def feedforward(f: Choice, d: int) -> int:
    """Return the parameters of a choice of feed-forward; a new one registers its formula."""
    raise NotImplementedError(f"no closed formula for {type(f).__name__}: feedforward.register it")


@feedforward.register
def experts(f: Experts, d: int) -> int:
    shared = 0
    if f.shared != "none":
        shared = hidden_layer(f.expert, int(f.shared_hidden_dim), d, 1) + (f.shared == "gated") * d
    router = f.num_experts * (d + f.router_bias) + f.out_bias * d
    return router + shared + hidden_layer(f.expert, int(f.expert.hidden_dim), d, f.num_experts)


@feedforward.register
def dense(f: Hidden, d: int) -> int:
    return hidden_layer(f, int(f.hidden_dim), d, 1)


def hidden_layer(f: Hidden, hidden: int, d: int, number: int) -> int:
    """Return the parameters of feed-forwards that share one activation."""
    maps = 2 if f.gated else 1
    total = (maps + 1) * d * hidden + f.bias.up * maps * hidden + f.bias.down * d
    return number * total + (2 if isinstance(f, XIELU) else 0) + norm(f.hidden_norm, hidden)


def norm(choice: norms.Norm, d: int) -> int:
    match choice:
        case norms.LayerNorm(weight=weight, bias=bias):
            return d * ((weight != "none") + bias)
        case norms.RMSNorm(weight=weight):
            return d * (weight != "none")
        case norms.NoNorm():
            return 0
    raise LookupError(f"{type(choice).__name__} is not in tests/laws/closed_count.py")


def shared_tables(layers: list[LayerSpec]) -> list[int]:
    """Return the sizes of tables that layers of one choice share."""
    found = {}
    for each in layers:
        a, position = each.attention, each.position
        if a.kind != "none" and isinstance(position, positions.T5Bias):
            two_way = a.mask.kind in ("full", "symmetric_window", "prefix")
            if position.shared:
                width = (
                    int(a.nope_head_dim) + int(a.rope_head_dim)
                    if a.kind == "latent"
                    else a.head_dim
                )
                key = (position, a.num_heads, width, two_way)
                found[key] = position.num_buckets * int(a.num_heads)
    return list(found.values())
