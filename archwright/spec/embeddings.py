"""Embedding and output heads."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoWidth, Choice, OptionalFloat, Probability, Spec
from archwright.spec.norms import LayerNorm, NoNorm, Norm


class Embedding(Spec):
    """x = dropout(norm(project_in(scale * weight[token]) + token_types[type] + bias)), with a table of shape
    [vocab_size, embedding.dim]. Positions are added before the norm."""

    dim: AutoWidth = Field("auto", examples=[128])
    """Width of the table; auto: the model's width. With another width, `project_in` maps the table's rows to dim, and
    the head reads the table through `project_out` (Lan et al., 2019, ALBERT, section 3.1; OPT-350m)."""
    project: Literal["table", "normed"] = "table"
    """Input of `project_in`. table: rows of the table; normed: the result of positions, norm and dropout, at the
    table's width (ALBERT, ELECTRA)."""
    project_bias: bool = False
    """Add a learned bias in `project_in` (ALBERT, ELECTRA)."""
    scale: Literal["none", "sqrt_dim"] | Annotated[float, Field(gt=0)] = Field(
        "none", examples=["sqrt_dim"]
    )
    """Factor of the table's rows: sqrt(dim) (Vaswani et al., 2017; Gemma), or a number (Granite). A tied head reads the
    unscaled table."""
    bias: bool = False
    """Add a learned vector to all tokens, such as RoBERTa's only segment."""
    token_types: int = Field(0, ge=0, le=2**12, examples=[2])
    """Rows of a table of token types, added to tokens by type: first or second of two segments (Devlin et al., 2018,
    BERT, section 3). The default type is 0."""
    norm: Norm = Field(NoNorm(), examples=[{"kind": "layer"}])
    """Norm of the embedding, after adding positions (BLOOM)."""
    dropout: Probability = 0.0
    """Share of the embedding's values dropped in training."""

    def num_parameters(self, dim: int, vocab_size: int) -> int:
        """Return the number of parameters of the table and its projection, from resolved values."""
        added = (self.bias + self.token_types) * self.sum_width(dim)
        return vocab_size * int(self.dim) + self.num_projection_parameters(dim) + added

    def num_projection_parameters(self, dim: int) -> int:
        """Return the number of parameters of `project_in`, from resolved values."""
        width = int(self.dim)
        return dim * (width + self.project_bias) if width != dim else 0

    def sum_width(self, dim: int) -> int:
        """Return the width at which positions and token types are added and normed."""
        return int(self.dim) if self.project == "normed" and self.dim != "auto" else dim


class Transform(Choice):
    """The axis of maps of a vector before the head's table."""

    axis: ClassVar[str] = "transform"

    def num_parameters(self, dim: int, width: int) -> int:
        """Return the number of parameters between a stream of `dim` and a table of `width` coordinates."""
        return dim * width if width != dim else 0


class NoTransform(Transform):
    """No map: the table reads the vector unchanged."""

    kind: Literal["none"] = "none"


class DenseTransform(Transform):
    """norm(f(W x + b)), with a W of shape [embedding.dim, dim] and a function f
    (Devlin et al., 2018: the head of BERT's masked language model)."""

    kind: Literal["dense"] = "dense"
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """The function f: GELU, exact or in its tanh approximation, max(0, x), or x sigmoid(x)."""
    bias: bool = True
    """Add a learned bias b (BERT; not ModernBERT)."""
    norm: Norm = Field(LayerNorm(), examples=[{"kind": "rms"}])
    """Norm after the function."""

    def num_parameters(self, dim: int, width: int) -> int:
        return width * (dim + self.bias) + self.norm.num_parameters(width)


class SequenceHead(Choice):
    """The axis of heads that classify whole rows of two segments: whether the second follows the first."""

    axis: ClassVar[str] = "sequence_head"

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters in a model of width `dim`."""
        return 0


class NoSequenceHead(SequenceHead):
    """No such head: only tokens are predicted."""

    kind: Literal["none"] = "none"


class PooledHead(SequenceHead):
    """classifier(tanh(pooler(x))) of the first token's vector x, with two logits: the second segment follows the first,
    or not (Devlin et al., 2018, BERT, section 3.1; Lan et al., 2019, ALBERT)."""

    kind: Literal["pooled"] = "pooled"
    dropout: Probability = 0.0
    """Share of the pooler's outputs dropped in training."""

    def num_parameters(self, dim: int) -> int:
        return dim * (dim + 1) + 2 * (dim + 1)


class Head(Spec):
    """logits = (x weight^T + bias) * logit_scale / logit_divisor, with a weight of shape [vocab_size, embedding.dim],
    or [1, dim] for detecting replaced tokens."""

    predicts: Literal["tokens", "replaced"] = "tokens"
    """tokens: a logit per token of the vocabulary; replaced: a single logit, the log-odds that the token was replaced
    (Clark et al., 2020, ELECTRA, section 2)."""
    tied: bool = False
    """Use the embedding's table as the head's weight (Press and Wolf, 2016)."""
    transform: Transform = NoTransform()
    """Map of x before the head."""
    bias: bool = False
    """Add a learned bias per token (GPT-J)."""
    logit_scale: float = Field(1.0, gt=0, examples=[0.0625])
    """Factor of logits (Command R)."""
    logit_divisor: float = Field(1.0, gt=0, examples=[8.0])
    """Divisor of logits (Granite)."""
    softcap: OptionalFloat = Field("none", examples=[30.0])
    """c tanh(logits / c), which keeps logits within +-c (Gemma 2); "none": no cap."""

    def scaled_down(self, old_dim: int, dim: int) -> dict[str, float]:
        """Return the factor of logits in a model of another width.

        dim^-0.5 (T5, PaLM) follows the width. Another factor below 1 limits changes of logits, which grow with the
        width (muP; Granite, Command A): it is multiplied by old_dim / dim, up to 1.
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
        """Return the number of logits per token."""
        return 1 if self.predicts == "replaced" else vocab_size
