"""Cross-attention: tokens of a decoder attend to the output of its encoder."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.kernels import ScoreMods, kernel_of
from archwright.parts.leaves import is_watched
from archwright.parts.linear import Linear, project, set_blocks
from archwright.parts.mixers.attention import Heads
from archwright.parts.mixers.base import Mixer
from archwright.parts.mixers.scales import SCORE_SCALES
from archwright.parts.norms import NORMS
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import SourceKV
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import cross_attention as spec


class SoftmaxCrossAttention(Mixer):
    """out(concat_h(softmax(scale q_h k_g^T) v_g)) with q = query(x), k = key(m), v = value(m), and m the encoder's
    output: head h reads key-value head g = h // (num_heads / num_kv_heads).

    Shapes: x and the result [batch, length, dim]; m [batch, source_length, memory_dim]; q [batch, length, num_heads,
    head_dim]; k and v [batch, source_length, num_kv_heads, head_dim]. A cache stores keys and values of the source.
    Padding of the source is hidden. In packed sequences, a token sees only the source of its segment.

    Vaswani et al., 2017, section 3.2.3.

    Args:
        layer: place in the model; `memory_dim` is the width of the encoder.
    """

    def __init__(
        self, spec: spec.SoftmaxCrossAttention, dim: int, layer: LayerInfo | None = None
    ) -> None:
        super().__init__()
        layer, sizes = layer or LayerInfo(), spec.heads(dim)
        self.spec = spec.model_copy(update=sizes)
        self.num_heads, self.num_kv_heads = sizes["num_heads"], sizes["num_kv_heads"]
        self.head_dim = head_dim = sizes["head_dim"]
        memory_dim = layer.memory_dim or dim
        self.scale: float = SCORE_SCALES.make(spec.scale, head_dim, layer.number)
        self.query = Linear(dim, self.num_heads * head_dim, bias=spec.bias.query, deepnorm=False)
        self.query.score_gain = self.scale * head_dim**0.5
        kv_width = self.num_kv_heads * head_dim
        self.key = Linear(memory_dim, kv_width, bias=spec.bias.key, deepnorm=False)
        self.value = Linear(memory_dim, kv_width, bias=spec.bias.value)
        self.out = Linear(
            self.num_heads * head_dim, dim, bias=spec.bias.out, is_residual_output=True
        )
        set_blocks(self.num_heads, self.query, self.out)
        set_blocks(self.num_kv_heads, self.key, self.value)
        self.query_norm: nn.Module = NORMS.make(spec.qk_norm, head_dim)
        self.key_norm: nn.Module = NORMS.make(spec.qk_norm, head_dim)
        self.kernel = kernel_of("sdpa")

    @property
    def inputs(self) -> list[Linear]:
        return [self.query]

    @property
    def source_maps(self) -> list[Linear]:
        return [self.key, self.value]

    @property
    def kept_blocks(self) -> int:
        return self.num_kv_heads

    @property
    def tensor_parallel(self) -> TensorParallel:
        sizes = {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}
        # A single key-value head is replicated.
        return TensorParallel(
            {name: n for name, n in sizes.items() if n > 1 or name == "num_heads"}
        )

    @property
    def generates_indefinitely(self) -> bool:  # type: ignore[override]
        return True

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context,
        state: SourceKV | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        q = self.query(x) if projected is None else projected[0]
        # [batch, length, heads, head_dim]
        q = self.query_norm(q.unflatten(-1, (self.num_heads, self.head_dim)))
        if state is None:
            k, v = self._keys_and_values(context)
        else:
            k, v = state.update(lambda: self._keys_and_values(context))
        softcap = None if self.spec.softcap == "none" else self.spec.softcap
        mods = ScoreMods(self.scale, self.spec.dropout if self.training else 0.0, softcap)
        # [batch, length, heads, head_dim]
        mixed = self.kernel.run(q, k.to(q.dtype), v.to(q.dtype), context.memory_mask(), mods)
        out: Tensor = self.out(mixed.flatten(-2))  # [batch, length, dim]
        return out

    def _keys_and_values(self, context: Context) -> tuple[Heads, Heads]:
        k, v = project(context.memory.output, [self.key, self.value])
        shape = (self.num_kv_heads, self.head_dim)
        # [batch, source_length, num_kv_heads, head_dim]
        return self.key_norm(k.unflatten(-1, shape)), v.unflatten(-1, shape)

    def new_state(self, batch: int) -> SourceKV:
        return SourceKV()

    def state_bytes(self, length: int, itemsize: int) -> int:
        return length * (self.key.d_out + self.value.d_out) * itemsize

    def prepare(self, context: Context) -> None:
        if not is_watched():
            self.kernel.prepare(context.memory_mask())

    def use_kernel(self, name: str) -> None:
        self.kernel = kernel_of(name)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}, {self.num_kv_heads} kv"
