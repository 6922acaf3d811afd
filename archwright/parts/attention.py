"""Attention branches: softmax attention in heads, from MHA over GQA to MQA."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.kernels import KERNELS
from archwright.parts.linear import Linear, narrow
from archwright.parts.masks import View
from archwright.parts.positions import Rotary, Rotation
from archwright.spec import attention as spec


class SoftmaxAttention(nn.Module):
    """out(concat_h(softmax(q_h k_g^T / sqrt(head_dim)) v_g)): head h reads key-value head
    g = h // (num_heads / num_kv_heads).

    Queries and keys are normed per head if asked, then turned by the rotary part. Shapes: x and the
    result [batch, length, dim]; q [batch, length, num_heads, head_dim]; k and v with num_kv_heads.

    Vaswani et al., 2017, section 3.2; Ainslie et al., 2023, GQA; Henry et al., 2020, QK-norm.
    """

    def __init__(
        self,
        spec: spec.SoftmaxAttention,
        dim: int,
        *,
        query_norm: nn.Module,
        key_norm: nn.Module,
        rotary: Rotary | None,
    ) -> None:
        super().__init__()
        assert spec.num_heads != "auto"
        assert spec.num_kv_heads != "auto"
        assert spec.head_dim != "auto"
        self.spec, self.head_dim, self.scale = spec, spec.head_dim, spec.head_dim**-0.5
        width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.query = Linear(dim, width, bias=spec.bias.query)
        self.key = Linear(dim, kv_width, bias=spec.bias.key)
        self.value = Linear(dim, kv_width, bias=spec.bias.value)
        self.out = Linear(width, dim, bias=spec.bias.out, ends_branch=True)
        self.query_norm, self.key_norm = query_norm, key_norm
        self.kernel = KERNELS["sdpa"]
        self._rotary = (rotary,)  # owned by the model; the tuple keeps it from registration here

    def forward(
        self, x: Float[Tensor, "batch length dim"], view: View, rotation: Rotation | None
    ) -> Float[Tensor, "batch length dim"]:
        x, heads = narrow(x), (*x.shape[:-1], -1, self.head_dim)
        q = self.query_norm(self.query(x).view(heads))
        k = self.key_norm(self.key(x).view(heads))
        v = self.value(x).view(heads)
        rotary = self._rotary[0]
        if rotary is not None and rotation is not None:
            q, k = rotary.rotate(q, rotation), rotary.rotate(k, rotation)
        dropout = self.spec.dropout if self.training else 0.0
        mixed = self.kernel(q, k, v, view, self.scale, dropout)
        out: Tensor = self.out(mixed.flatten(-2))
        return out

    def extra_repr(self) -> str:
        return f"{self.spec.num_heads} heads of {self.head_dim}, {self.spec.num_kv_heads} kv"


ATTENTIONS: dict[type[spec.Attention], Any] = {spec.SoftmaxAttention: SoftmaxAttention}
