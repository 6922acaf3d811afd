"""The numbers of a run and the sentence made of them."""

import math
from typing import Any

import pytest

from archwright.reporting.history import read_history
from archwright.reporting.result import as_nats_per_token, notice, result_of, verdict
from archwright.runs import RunFolder


def error_lines(run: RunFolder) -> tuple[str, str]:
    """Return the verdict as one sentence, and the notice."""
    history = read_history(run)
    result = result_of(history)
    return " ".join(verdict(history, result)), notice(history, result)


def test_the_verdict_says_it_all(made: Any) -> None:
    lines = [
        *made.steps(100, evaluations=0),
        {"kind": "eval", **made.at(100), **made.evaluation(3.0)},
        *made.baselines(100),
        made.event("finished", 100),
    ]
    sentence, warning = error_lines(made.run(lines))
    bits = 3.0 / (3.3 * math.log(2))
    assert sentence == (
        f"{bits:.3f} bits per byte on held-out text reached by a model of 1.28M parameters after "
        "410k tokens in 15 s on Testing CPU 9000 (2 threads, bf16): better than gzip -9 (2.040) and "
        "xz -9e (1.710), with perplexity 20.1 per token (base e)."
    )
    assert warning == ""


@pytest.mark.parametrize(
    ("gzip", "xz", "expected"),
    [
        (2.04, 1.71, "better than gzip -9 (2.040) and xz -9e (1.710)"),
        (2.04, 1.2, "better than gzip -9 (2.040) but worse than xz -9e (1.200)"),
        (1.3, 1.2, "worse than gzip -9 (1.300) and xz -9e (1.200)"),
        (
            2.04,
            3.0 / (3.3 * math.log(2)),
            "better than gzip -9 (2.040) but level with xz -9e (1.312)",
        ),
    ],
)
def test_beside_compressors(made: Any, gzip: float, xz: float, expected: str) -> None:
    evaluation = {"kind": "eval", **made.at(9), **made.evaluation(3.0)}
    lines = [*made.steps(9, evaluations=0), evaluation, *made.baselines(9, gzip, xz)]
    assert expected in error_lines(made.run(lines))[0]


def test_an_evaluation_on_a_part_is_no_silent_comparison(made: Any) -> None:
    lines = [
        *made.steps(9, evaluations=0),
        {"kind": "eval", **made.at(9), **made.evaluation(3.0, num_bytes=330_000)},
        *made.baselines(9),
        made.event("finished", 9),
    ]
    assert "330 kB of the 1 MB" in error_lines(made.run(lines))[1]


def test_nothing_trained(made: Any) -> None:
    assert error_lines(made.run([]))[0] == "Nothing trained yet in this run folder."


def test_losses_that_are_not_finite_are_said_so(made: Any) -> None:
    diverged = {"kind": "eval", **made.at(1), **made.evaluation(3.0)}
    diverged |= {"bits_per_byte": None, "nats_per_token": None, "perplexity": None}
    lines = [{"kind": "train", **made.at(1), "loss": None}, diverged, *made.baselines(1)]
    sentence, _ = error_lines(made.run(lines))
    assert sentence.startswith("The held-out loss is not finite for a model")
    assert "gzip" not in sentence


def test_speed_is_the_median_after_the_warm_up(made: Any) -> None:
    speeds = [10.0] * 2 + [100.0] * 9 + [120.0] * 8 + [1000.0]
    lines = [
        {"kind": "train", **made.at(i + 1), "loss": 1.0, "tokens_per_second": speed}
        for i, speed in enumerate(speeds)
    ]
    assert result_of(read_history(made.run(lines))).tokens_per_second == 110.0


@pytest.mark.parametrize(("steps", "averaged"), [(3, 3), (25, 10), (999, 10), (2000, 20)])
def test_the_training_loss_is_a_mean_over_ten_steps_or_a_hundredth(
    made: Any, steps: int, averaged: int
) -> None:
    losses = [2.0 + (7 * i % 11) / 10 for i in range(steps)]
    lines = [{"kind": "train", **made.at(i + 1), "loss": loss} for i, loss in enumerate(losses)]
    found = result_of(read_history(made.run(lines))).train_loss
    assert found == pytest.approx(math.fsum(losses[-averaged:]) / averaged)


def test_bits_per_byte_and_nats_per_token_are_one_quantity(made: Any) -> None:
    evaluation = made.evaluation(2.5)
    assert as_nats_per_token(evaluation["bits_per_byte"], evaluation) == pytest.approx(2.5)
