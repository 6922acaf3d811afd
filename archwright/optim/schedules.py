"""Learning-rate schedules: the share of the peak as a pure function of the step."""

import math
from numbers import Real

from archwright.parts.registry import Registry
from archwright.spec.schedules import WSD, Constant, Cosine, InverseSqrt, Linear, Schedule


def learning_rate(schedule: Schedule, step: int, num_steps: int | float) -> float:
    """Return the learning rate of a step as a share of its peak, in [0, 1].

    With w = warm-up, all schedules rise as (step + 1) / (w + 1) and reach 1 at step w, so that no step has rate 0. A
    decay ends at num_steps, and the rate is constant afterwards. A run has steps 0 to num_steps - 1. `num_steps` may be
    a fraction, because a run may adjust it gradually.
    """
    warmup = warmup_steps(schedule, num_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    share: float = SCHEDULES.make(schedule, step, warmup, num_steps)
    return share


def warmup_steps(schedule: Schedule, num_steps: int | float) -> int:
    """Return the number of warm-up steps; "auto" is a twentieth of the run, at most 200."""
    return min(200, int(num_steps // 20)) if schedule.warmup == "auto" else schedule.warmup


def cosine(schedule: Cosine, step: int, warmup: int, num_steps: int | float) -> float:
    """f + (1 - f) (1 + cos(pi t)) / 2, t from 0 after warm-up to 1 at the end, f = final_lr_fraction.

    Source: Loshchilov and Hutter, 2016, SGDR, equation 5, without restarts.
    """
    t = _progress(step, warmup, num_steps)
    return (
        schedule.final_lr_fraction
        + (1 - schedule.final_lr_fraction) * (1 + math.cos(math.pi * t)) / 2
    )


def linear(schedule: Linear, step: int, warmup: int, num_steps: int | float) -> float:
    """1 - (1 - f) t, t from 0 after warm-up to 1 at the end, f = final_lr_fraction.

    Source: Devlin et al., 2018, BERT, appendix A.2.
    """
    return _line(schedule.final_lr_fraction, _progress(step, warmup, num_steps))


def wsd(schedule: WSD, step: int, warmup: int, num_steps: int | float) -> float:
    """1, then 1 - (1 - f) t in the last decay_fraction of all steps, t from 0 to 1, f = final_lr_fraction.

    Source: Hu et al., 2024, MiniCPM, section 4, with the linear decay of Hägele et al., 2024, section 3.
    """
    # A long warm-up shortens the decay.
    start = max(warmup, num_steps - round(schedule.decay_fraction * num_steps))
    return _line(schedule.final_lr_fraction, _progress(step, start, num_steps))


def constant(schedule: Constant, step: int, warmup: int, num_steps: int | float) -> float:
    """1 after warm-up."""
    return 1.0


def inverse_sqrt(schedule: InverseSqrt, step: int, warmup: int, num_steps: int | float) -> float:
    """sqrt((w + 1) / (step + 1)) after warm-up w.

    Source: Vaswani et al., 2017, section 5.3, which counts steps from 1; divided by its peak.
    """
    return math.sqrt((warmup + 1) / (step + 1))


def _progress(step: int, start: int | float, end: int | float) -> float:
    """Return the progress of `step` from `start` to `end`, in [0, 1]."""
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))


def _line(final_lr_fraction: float, t: float) -> float:
    return 1 - (1 - final_lr_fraction) * t


SCHEDULES = Registry(
    Schedule,
    "(spec, step, warmup, num_steps)",
    Real,
    {
        Cosine: cosine,
        WSD: wsd,
        Linear: linear,
        Constant: constant,
        InverseSqrt: inverse_sqrt,
    },
)
"""Functions that return the share of the peak learning rate at a step after warm-up, counted from 0."""
