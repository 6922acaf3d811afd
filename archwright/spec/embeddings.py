"""Embedding and output head: from tokens to vectors and back."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoWidth, Choice, OptionalFloat, Probability, Spec
from archwright.spec.norms import LayerNorm, NoNorm, Norm


class Embedding(Spec):
    """x = dropout(norm(project_in(scale * weight[token]) + token_types[type] + bias)), with a table of shape
    [vocab_size, embedding.dim]. Positions that are added come before the norm."""

    dim: AutoWidth = Field("auto", examples=[128])
    """Width of the table; auto: that of the model. With another, `project_in` maps it to dim, and the head
    reads the table through `project_out` (Lan et al., 2019, ALBERT, section 3.1; OPT-350m)."""
    project: Literal["table", "normed"] = "table"
    """What `project_in` maps to dim: rows of the table, or what positions, norm and dropout made of them, which are
    then as wide as the table (ALBERT, ELECTRA)."""
    project_bias: bool = False
    """Learn an offset in `project_in` (ALBERT, ELECTRA)."""
    scale: Literal["none", "sqrt_dim"] | Annotated[float, Field(gt=0)] = Field(
        "none", examples=["sqrt_dim"]
    )
    """Factor of the table's rows: sqrt(dim) (Vaswani et al., 2017; Gemma), or a number
    (Granite). The head of a tied table reads it unscaled."""
    bias: bool = False
    """Learn a vector that is added to all tokens, such as that of RoBERTa's only segment."""
    token_types: int = Field(0, ge=0, le=2**12, examples=[2])
    """Rows of a table of token types, one of which is added to each token: the first or second of two segments
    (Devlin et al., 2018, BERT, section 3). Tokens of which no type is given are of type 0."""
    norm: Norm = Field(NoNorm(), examples=[{"kind": "layer"}])
    """Norm over the embedding, after positions were added (BLOOM)."""
    dropout: Probability = 0.0
    """Share of the embedding's values dropped in training."""

    def num_parameters(self, dim: int, vocab_size: int) -> int:
        """Return the number of parameters of the table and of what maps it into the stream, resolved."""
        added = (self.bias + self.token_types) * self.sum_width(dim)
        return vocab_size * int(self.dim) + self.num_projection_parameters(dim) + added

    def num_projection_parameters(self, dim: int) -> int:
        """Return the number of parameters of `project_in`, resolved."""
        width = int(self.dim)
        return dim * (width + self.project_bias) if width != dim else 0

    def sum_width(self, dim: int) -> int:
        """Return the width at which positions and token types are added, and normed."""
        return int(self.dim) if self.project == "normed" and self.dim != "auto" else dim


class Transform(Choice):
    """The axis of what the head does to a vector before its table reads it."""

    axis: ClassVar[str] = "transform"

    def num_parameters(self, dim: int, width: int) -> int:
        """Return the number of parameters between a stream of `dim` and a table of `width` coordinates."""
        return dim * width if width != dim else 0


class NoTransform(Transform):
    """The table reads the vector as it is."""

    kind: Literal["none"] = "none"


class DenseTransform(Transform):
    """norm(f(W x + b)), with a W of shape [embedding.dim, dim] and a function f
    (Devlin et al., 2018: the head of BERT's masked language model)."""

    kind: Literal["dense"] = "dense"
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """The function f: GELU, exact or in its tanh approximation, max(0, x), or x sigmoid(x)."""
    bias: bool = True
    """Learn the offset b (BERT; not ModernBERT)."""
    norm: Norm = Field(LayerNorm(), examples=[{"kind": "rms"}])
    """The norm behind the function."""

    def num_parameters(self, dim: int, width: int) -> int:
        return width * (dim + self.bias) + self.norm.num_parameters(width)


class SequenceHead(Choice):
    """The axis of heads that judge a row as a whole, beside the one that predicts tokens: whether its second segment
    follows the first."""

    axis: ClassVar[str] = "sequence_head"

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters in a model of width `dim`."""
        return 0


class NoSequenceHead(SequenceHead):
    """Tokens alone are predicted."""

    kind: Literal["none"] = "none"


class PooledHead(SequenceHead):
    """classifier(tanh(pooler(x))) of the first token's vector x, two logits: whether the second segment follows the
    first, or not (Devlin et al., 2018, BERT, section 3.1; Lan et al., 2019, ALBERT)."""

    kind: Literal["pooled"] = "pooled"
    dropout: Probability = 0.0
    """Share of what the pooler gives dropped in training."""

    def num_parameters(self, dim: int) -> int:
        return dim * (dim + 1) + 2 * (dim + 1)


class Head(Spec):
    """logits = (x weight^T + bias) * logit_scale / logit_divisor, with a weight of shape
    [vocab_size, embedding.dim], or [1, dim] where replaced tokens are found."""

    predicts: Literal["tokens", "replaced"] = "tokens"
    """What logits are of: each token of the vocabulary; or one logit, the log-odds that the token was replaced by
    another (Clark et al., 2020, ELECTRA, section 2)."""
    tied: bool = False
    """Use the embedding's table as the head's weight (Press and Wolf, 2016)."""
    transform: Transform = NoTransform()
    """Map of x before the head."""
    bias: bool = False
    """Learn an offset per token (GPT-J)."""
    logit_scale: float = Field(1.0, gt=0, examples=[0.0625])
    """Factor of logits (Command R)."""
    logit_divisor: float = Field(1.0, gt=0, examples=[8.0])
    """Divisor of logits (Granite)."""
    softcap: OptionalFloat = Field("none", examples=[30.0])
    """c tanh(logits / c), which keeps logits within +-c (Gemma 2); "none" leaves them alone."""

    def scaled_down(self, old_dim: int, dim: int) -> dict[str, float]:
        """Return the factor of logits in a model of another width.

        dim^-0.5 (T5, PaLM) stays so. Another factor below 1 keeps small the changes of wide models' logits, which grow
        with the width (muP; Granite, Command A): it is multiplied by old_dim / dim, up to 1.
        """
        factor = self.logit_scale / self.logit_divisor
        if factor >= 1:
            return {}
        is_root = math.isclose(factor, old_dim**-0.5, rel_tol=1e-6)
        new = dim**-0.5 if is_root else min(1.0, factor * old_dim / dim)
        if self.logit_divisor == 1:
            return {"logit_scale": new}
        return {"logit_divisor": self.logit_scale / new}

    def num_parameters(self, dim: int, width: int, vocab_size: int) -> int:
        """Return the number of parameters between stream and logits, without a tied table."""
        outputs = self.num_outputs(vocab_size)
        table = 0 if self.tied else outputs * width
        return self.transform.num_parameters(dim, width) + table + self.bias * outputs

    def num_outputs(self, vocab_size: int) -> int:
        """Return the number of logits of a token."""
        return 1 if self.predicts == "replaced" else vocab_size
