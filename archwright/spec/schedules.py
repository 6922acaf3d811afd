"""Learning-rate schedules of a run."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoSteps, Choice


class Schedule(Choice):
    """The axis of learning-rate schedules: factors of the peak, as functions of the step. All begin with a linear
    warm-up."""

    axis: ClassVar[str] = "schedule"
    warmup: AutoSteps | Literal[0] = Field("auto", examples=[100])
    """Steps of linear warm-up; auto: 5% of the run, at most 200."""


class Cosine(Schedule):
    """f + (1 - f) (1 + cos(pi t)) / 2, t from 0 after warm-up to 1 at the end, f = final_lr_fraction
    (Loshchilov and Hutter, 2016)."""

    kind: Literal["cosine"] = "cosine"
    final_lr_fraction: float = Field(0.1, ge=0, le=1)
    """Final learning rate as a share of the peak."""


class WSD(Schedule):
    """1, then 1 - (1 - f) t over the last share `decay_fraction` of the run, t from 0 to 1, f = final_lr_fraction
    (Hu et al., 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """Share of the run with decay."""
    final_lr_fraction: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""


class Linear(Schedule):
    """1 - (1 - f) t, t from 0 after warm-up to 1 at the end, f = final_lr_fraction (Devlin et al., 2018)."""

    kind: Literal["linear"] = "linear"
    final_lr_fraction: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""


class Constant(Schedule):
    """1 after warm-up."""

    kind: Literal["constant"] = "constant"


class InverseSqrt(Schedule):
    """sqrt((warmup + 1) / (step + 1)) after warm-up, with steps counted from 0 (Vaswani et al., 2017, section 5.3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
