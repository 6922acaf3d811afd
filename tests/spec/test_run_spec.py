import pytest

from archwright.spec.budget import Budget
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("3m", 180, "seconds"),
        ("45s", 45, "seconds"),
        ("1.5h", 5400, "seconds"),
        ("2d", 172_800, "seconds"),
        ("1h30m", 5400, "seconds"),
        ("400steps", 400, "steps"),
        ("2ksteps", 2000, "steps"),
        ("10Mtokens", 1e7, "tokens"),
        ("1_000 tokens", 1000, "tokens"),
        ("1.5Btokens", 1.5e9, "tokens"),
        ("1e15flops", 1e15, "flops"),
        ("1E15flops", 1e15, "flops"),
        ("2Tflops", 2e12, "flops"),
        (" 1e+2 steps ", 100, "steps"),
    ],
)
def test_budgets(text: str, amount: float, unit: str) -> None:
    assert (Budget(text).amount, Budget(text).unit) == (amount, unit)
    found = RunSpec(budget=text).budget
    assert found == text
    assert (found.amount, found.unit) == (amount, unit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "m",
        "-3m",
        "0s",
        "0.5steps",
        "3 minutes",
        "10Xtokens",
        "3m 2",
        "3m 2tokens",
        "nans",
        "3M",
    ],
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError, match=r'^expected an amount with a unit, such as "3m"'):
        Budget(text)
    with pytest.raises(UserError, match=r"^budget: found .*; expected an amount with a unit"):
        RunSpec().override(f"budget={text}")


def test_texts_are_a_list_or_one() -> None:
    assert RunSpec().override("data.text=a.txt").data.text == ("a.txt",)
    assert RunSpec().override('data.text=["a", "b"]').data.text == ("a", "b")


def test_tokens_per_step() -> None:
    assert RunSpec().override("batch_size=4", "model.context_length=32").tokens_per_step == 128


@pytest.mark.parametrize("warmup", ["0", "7", '"auto"'])
def test_a_warm_up_may_be_left_out(warmup: str) -> None:
    RunSpec().override(f"schedule.warmup={warmup}")


class TestPairs:
    def test_pairs_and_their_objective_ask_for_each_other(self) -> None:
        asked = RunSpec().override("data.pairs=a.tsv")
        assert asked.objective.kind == "sequence_to_sequence"
        assert RunSpec().override("objective.kind=sequence_to_sequence").data.pairs == "synthetic"
        both = RunSpec().override("objective.kind=sequence_to_sequence", "data.pairs=b.tsv")
        assert both.data.pairs == "b.tsv"

    def test_another_text_ends_pairs(self) -> None:
        asked = RunSpec().override("data.text=notes.txt")
        assert asked.override("data.pairs=a.tsv").data.texts == ("a.tsv",)
        assert asked.override("data.pairs=a.tsv").data.text == ("stdlib",)
        assert asked.override("data.pairs=a.tsv").override("data.text=b.txt").data.texts == (
            "b.txt",
        )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("csv", ("csv",)),
        ("csv,wandb", ("csv", "wandb")),
        ("csv, wandb, csv", ("csv", "wandb")),
        ('["tensorboard"]', ("tensorboard",)),
        ("none", ()),
        ("[]", ()),
    ],
)
def test_loggers_are_names(text: str, names: tuple[str, ...]) -> None:
    run = RunSpec().override(f"loggers={text}")
    assert run.loggers == names
    assert run.hash() == RunSpec().hash()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "wanbd",
            'loggers: found "wanbd"; expected csv, tensorboard, wandb or none. Did you mean "wandb"?',
        ),
        ("csv,mlflow", 'loggers: found "csv,mlflow"; expected csv, tensorboard, wandb or none'),
        ("true", "loggers: found true; expected a list"),
    ],
)
def test_what_is_no_logger(text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        RunSpec().override(f"loggers={text}")
    assert caught.value.lines == (line,)


def test_early_stopping_is_another_run() -> None:
    assert RunSpec().early_stop.patience == 0
    stopping = RunSpec().override("early_stop.patience=3", "early_stop.min_delta=0.01")
    assert stopping.hash() != RunSpec().hash()
