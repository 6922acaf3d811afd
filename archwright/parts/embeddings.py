"""Token embeddings, and heads from the last hidden states to logits."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.parts.linear import Embedding, Linear, TokenTable
from archwright.parts.norms import NORMS
from archwright.parts.registry import Registry
from archwright.spec import embeddings as spec
from archwright.spec.errors import UserError


@runtime_checkable
class VocabShards(Protocol):
    """Ranks that split the vocabulary.

    Attributes:
        start: First local token.
        size: Size of the complete vocabulary.
    """

    start: int
    size: int

    def max(self, x: Tensor) -> Tensor:
        """Return the maximum over ranks, without a gradient."""

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over ranks, without a gradient."""


class TokenEmbedding(Embedding):
    """x = P (scale * W[token]) + T[type] + b, with a table W of shape [vocab_size, spec.dim].

    The scale is 1, sqrt(dim) or a number, rounded to the dtype of the table as in Gemma. A head that shares the
    table does not scale it. P [dim, spec.dim] exists if the widths differ, unless the projection follows the norm. The
    bias b [dim] and the table of token types T [token_types, dim] are optional.
    Vaswani et al., 2017, section 3.4; Lan et al., 2019, ALBERT, section 3.1 (P); Devlin et al., 2018, BERT,
    section 3 (T).
    """

    holds_tokens = True

    def __init__(self, spec: spec.Embedding, dim: int, vocab_size: int) -> None:
        width = dim if spec.dim == "auto" else spec.dim
        super().__init__(vocab_size, width)
        projects = width != dim and spec.project == "table"
        self.project_in = Linear(width, dim, bias=spec.project_bias) if projects else None
        sum_width = spec.sum_width(dim)
        self.bias = nn.Parameter(torch.zeros(sum_width)) if spec.bias else None
        self.token_types = TokenTable(spec.token_types, sum_width) if spec.token_types else None
        named = {"none": 1.0, "sqrt_dim": dim**0.5}
        self.scale = named[spec.scale] if isinstance(spec.scale, str) else spec.scale

    @property
    def vocab_parallel(self) -> bool:
        """True if ranks may split the rows of W and sum their results, because nothing is added to W[token]."""
        return self.project_in is None and self.token_types is None and self.bias is None

    def forward(
        self, index: Int[Tensor, "*batch"], token_type_ids: Int[Tensor, "*batch"] | None = None
    ) -> Float[Tensor, "*batch dim"]:
        """Return the embeddings of tokens; the default token type is 0.

        Raises:
            UserError: `token_type_ids` without a table of token types.
        """
        x = F.embedding(index, self.weight)
        if self.scale != 1:
            # A CPU scalar of the dtype of x: a float would be multiplied without rounding.
            x = x * torch.tensor(self.scale, dtype=x.dtype, device="cpu")
        if self.project_in is not None:
            x = self.project_in(x)
        if self.token_types is not None:
            types = self.token_types
            of_type = types.weight[0] if token_type_ids is None else types(token_type_ids)
            x = x + of_type.to(x.dtype)
        elif token_type_ids is not None:
            raise UserError(
                "token_type_ids: found some, and the embedding has no token types; expected none, or "
                "embedding.token_types=2"
            )
        return x if self.bias is None else x + self.bias.to(x.dtype)


class DenseTransform(nn.Module):
    """y = norm(f(W x + b)), with f of the spec. Shapes: x [..., dim], W [width, dim], y [..., width].

    Devlin et al., 2018, BERT, section 3.1 (its published code has the form); Lan et al., 2019, ALBERT, has
    a width that is not dim.
    """

    def __init__(self, spec: spec.DenseTransform, dim: int, width: int) -> None:
        super().__init__()
        self.dense = Linear(dim, width, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm: nn.Module = NORMS.make(spec.norm, width)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch width"]:
        y: Tensor = self.norm(self.activation(self.dense(x)))
        return y


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""Activations f of dense transforms."""

TRANSFORMS = Registry(
    spec.Transform, "(spec, dim, width)", nn.Module, {spec.DenseTransform: DenseTransform}
)
"""Modules before the table of a head: [..., dim] -> [..., width], with the width of the table."""


class PooledHead(nn.Module):
    """logits = W2 tanh(W1 x + b1) + b2, to predict whether the second segment follows the first.

    Shapes: x [..., dim], hidden states of first tokens; W1 [dim, dim], W2 [2, dim]; logits [..., 2]. Class 0: the
    second segment follows; class 1: it does not.

    Devlin et al., 2018, BERT, section 3.1 and its published code.
    """

    def __init__(self, spec: spec.PooledHead, dim: int) -> None:
        super().__init__()
        self.dropout = spec.dropout
        self.pooler, self.classifier = Linear(dim, dim, bias=True), Linear(dim, 2, bias=True)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch classes"]:
        pooled = F.dropout(torch.tanh(self.pooler(x)), self.dropout, self.training)
        logits: Tensor = self.classifier(pooled)
        return logits


SEQUENCE_HEADS = Registry(
    spec.SequenceHead, "(spec, dim)", nn.Module, {spec.PooledHead: PooledHead}
)
"""Modules from hidden states [batch, dim] of the first tokens to logits [batch, 2]."""


class Head(Linear):
    """logits = (g(x) W^T + b) * logit_scale / logit_divisor, then c tanh(logits / c) with a soft-cap c.

    W may be the table of the embedding. g is the transform. Without one, g(x) = x, or P x with P [width, dim] if the
    table has a different width.

    Shapes: x [..., dim], W [vocab_size, width], b [vocab_size], logits [..., vocab_size]. A detector of replaced tokens
    has 1 output instead of vocab_size (Clark et al., 2020, section 2).
    Press and Wolf, 2016 (tying); Gemma 2, section 2 (soft-cap); Lan et al., 2019, section 3.1 (P).

    Args:
        width: width of the table (default: dim).
        transform: g, from dim to width.
        divisor: divisor of the initialisation (muP), multiplied with the divisor of the spec.
    """

    is_lm_head = True
    vocab_parallel = True
    """True: ranks may split the rows of W, and thereby the logits."""
    vocab: VocabShards | None = None
    """Ranks that split the logits; `forward` returns the local ones."""

    def __init__(
        self,
        spec: spec.Head,
        dim: int,
        vocab_size: int,
        table: nn.Parameter | None = None,
        *,
        width: int | None = None,
        transform: nn.Module | None = None,
        divisor: float = 1.0,
    ) -> None:
        width = width or dim
        super().__init__(width, spec.num_outputs(vocab_size), bias=spec.bias)
        self.transform = transform
        self.project_out = Linear(dim, width) if width != dim and transform is None else None
        self.logit_scale, self.logit_divisor = spec.logit_scale, spec.logit_divisor * divisor
        self.softcap = None if spec.softcap == "none" else spec.softcap
        if table is not None:
            self.weight = table

    def forward(
        self,
        x: Float[Tensor, "*batch dim"],
        work: Callable[[Callable[[Tensor], Tensor], Tensor], Any] | None = None,
    ) -> Any:
        """Return logits.

        Args:
            work: Function of this map and x that is called instead, such as a loss in chunks. Hooks of the head, such
                as those of FSDP2, then run once, before and after all chunks.
        """
        if work is not None:
            return work(self.forward, x)
        for before in (self.transform, self.project_out):
            x = x if before is None else before(x)
        logits = super().forward(x)
        if self.logit_scale != 1:
            logits = logits * self.logit_scale
        if self.logit_divisor != 1:
            logits = logits / self.logit_divisor
        if self.softcap is None:
            return logits
        return self.softcap * torch.tanh(logits / self.softcap)
