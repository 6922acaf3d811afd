"""Optimizers of a run."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from archwright.spec.choice import AutoFloat, Choice


class Optimizer(Choice):
    """The axis of optimizers, which compute updates from gradients."""

    axis: ClassVar[str] = "optimizer"
    can_shard: ClassVar[bool] = False
    """True if ranks can each hold a shard of its parameters: updates are elementwise, or it gathers whole tensors with
    `archwright.optim.shards`."""
    learning_rates: ClassVar[tuple[str, ...]] = ("lr",)
    """Fields that are peak learning rates. The first is tuned and is the value of "auto" in the others, which keep
    their ratio to it."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        rates = set(cls.learning_rates)
        if not cls.is_axis() and not (rates and rates <= cls.model_fields.keys()):
            raise ValueError(
                f"{cls.__name__}: learning_rates is {cls.learning_rates}; expected the names of its fields that "
                "are learning rates, one at least"
            )

    @property
    def peak_lr(self) -> float:
        """The tuned learning rate."""
        lr: float = getattr(self, self.learning_rates[0])
        return lr

    def with_peak_lr(self, lr: float) -> Self:
        """Return this optimizer with another tuned learning rate; the others keep their ratio."""
        first, *others = self.learning_rates
        given = {name: getattr(self, name) for name in others if getattr(self, name) != "auto"}
        rescaled = {name: value * lr / self.peak_lr for name, value in given.items()}
        return self.model_copy(update={first: lr, **rescaled})

    def with_lrs_resolved(self) -> Self:
        """Return this optimizer with a number for each "auto" learning rate."""
        left = [name for name in self.learning_rates if getattr(self, name) == "auto"]
        return self.model_copy(update=dict.fromkeys(left, self.peak_lr)) if left else self


Betas = Annotated[
    tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
    Field(strict=False),
]


class AdamW(Optimizer):
    """Adam with decoupled weight decay on matrices: w = w - lr (m / (sqrt(v) + eps) + weight_decay w), with
    bias-corrected running means m of the gradient and v of its square (Loshchilov and Hutter, 2017)."""

    kind: Literal["adamw"] = "adamw"
    can_shard: ClassVar[bool] = True
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate."""
    betas: Betas = (0.9, 0.95)
    """Decay per step of the running means of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the mean square."""
    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """Weight decay coefficient; a step removes the share lr weight_decay of a weight."""


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: M = momentum M + g + weight_decay w, w = w - lr M (Robbins and Monro,
    1951; Sutskever et al., 2013). Updates are proportional to gradients, so that rates are far above AdamW's."""

    kind: Literal["sgd"] = "sgd"
    can_shard: ClassVar[bool] = True
    lr: float = Field(0.1, gt=0)
    """Peak learning rate."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Decay per step of the running sum M of gradients; 0: the gradient itself."""
    weight_decay: float = Field(0.0, ge=0, le=1e6)
    """Weight decay coefficient of matrices; a step removes the share lr weight_decay of a weight."""


class Muon(Optimizer):
    """Orthogonalized momentum for hidden matrices: W = (1 - lr weight_decay) W - lr 0.2 sqrt(max(d_out, d_in)) U V^T,
    with U S V^T the singular value decomposition of the momentum (Jordan et al., 2024, Muon); AdamW for the rest."""

    kind: Literal["muon"] = "muon"
    can_shard: ClassVar[bool] = True
    learning_rates: ClassVar[tuple[str, ...]] = ("lr", "adamw_lr")
    lr: float = Field(1e-2, gt=0)
    """Peak learning rate of matrices, in AdamW's units: updates have a root mean square of 0.2."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay per step of the running mean M of the gradient G."""
    nesterov: bool = True
    """Nesterov momentum: (1 - momentum) G + momentum M instead of M."""
    method: Literal["polar", "jordan"] = "polar"
    """Polynomials of the Newton-Schulz iterations. polar: Polar Express (Amsel et al., 2025); jordan: Jordan's."""
    steps: int = Field(3, ge=1, le=20)
    """Newton-Schulz iterations; "jordan" needs 5."""
    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """Weight decay coefficient; a step removes the share lr weight_decay of a weight."""
    adamw_lr: AutoFloat = Field("auto", examples=[3e-3])
    """Peak learning rate of embedding, head and vectors; auto: `lr`."""
    betas: Betas = (0.9, 0.95)
    """AdamW's decay per step of the running means of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's addend to the root of the mean square."""
