"""Studies whose variants have tokenizers of their own are judged in bits per byte of the same text."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import normalizers

from archwright.lab.compare import compare, plan
from archwright.lab.design import plan as plans
from archwright.lab.design.ngrams import bigram_loss, counted
from archwright.lab.report.csv_files import tables
from archwright.lab.report.page import study_page
from archwright.lab.report.terminal import as_json, print_results
from archwright.lab.results import StudyResults
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.read import read_study
from archwright.text.bpe import raw_bytes
from tests.lab.small import OPTIONS, losses, words, working_in

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no bits per byte, as")]

KIND = ":data.tokenizer.kind=bpe"
SMALLER = f"{KIND},data.tokenizer.vocab_size=300"
LARGER = f"{KIND},data.tokenizer.vocab_size=310"
ASKED = words("text.txt", SMALLER, LARGER)  # the baseline's tokens are bytes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with working_in(tmp_path_factory.mktemp("tokenizers")) as folder:
        yield folder


@pytest.fixture(scope="module")
def results(place: Path) -> StudyResults:
    return compare(*ASKED, quiet=True, out="study", **OPTIONS)


def test_losses_are_bits_per_byte_of_the_same_text(results: StudyResults, place: Path) -> None:
    assert results.complete
    assert results.unit == "bits per byte"
    sizes: dict[str, set[tuple[int, int]]] = {}
    for run in results.runs:
        folder = RunFolder(place / "studies" / "runs" / run.key)
        (final,) = [r for r in folder.metrics() if r.get("name") == "final"]
        assert run.loss == pytest.approx(final["bits_per_byte"], rel=1e-12)
        assert run.bits_per_byte == run.loss
        assert run.halves is not None
        assert len(run.halves.sizes) == len(final["judged_nats"])
        judged = math.fsum(final["judged_nats"]) / math.log(2) / sum(final["judged_bytes"])
        assert run.halves.judged == pytest.approx(judged, rel=1e-12)
        assert run.initial_loss > run.loss > 0
        assert all(0 < point.loss < 20 for point in run.curve)
        sizes.setdefault(run.variant, set()).add((final["num_bytes"], final["num_tokens"]))
    assert all(len(found) == 1 for found in sizes.values())
    (size,), *others = sizes.values()
    for ((num_bytes, num_tokens),) in others:
        assert num_bytes == pytest.approx(size[0], rel=0.01)
        assert num_tokens != size[1]
    assert all(0 < r.loss < 10 for r in results.replicates)
    assert all(0 < effect.text_error < 0.5 for effect in results.effects)


def test_all_that_is_said_is_in_bits_per_byte(
    results: StudyResults, capsys: pytest.CaptureFixture[str]
) -> None:
    page = study_page(results).html()
    print_results(results)
    shown = capsys.readouterr().out + page + results.verdict
    assert "nats per token" not in shown
    assert "Bits per byte</th>" in page
    assert {effect.unit for effect in results.effects} == {"bits per byte"}
    assert {e["unit"] for e in json.loads(as_json(results))["effects"]} == {"bits per byte"}
    assert ",unit," in tables(results)["effects.csv"].splitlines()[0]
    held = {each.what: each for each in results.held}
    assert not held["tokenizer"].equal
    assert len({*held["text trained on"].by_variant.values()}) == 3
    assert "held-out bytes, half for tuning learning rates" in held["judged on"].value


def test_the_study_is_read_again_as_it_was(results: StudyResults, place: Path) -> None:
    again = compare(*ASKED, quiet=True, out="study", **OPTIONS)
    assert losses(again) == losses(results)
    assert again.effects == results.effects
    study, folder = read_study(place / "study/study.toml"), RunFolder(place / "study")
    there = plans.saved(study, folder)
    assert there is not None
    sizes = [arm.material.tokenizer.vocab_size for arm in there.arms.values()]
    assert len({*sizes}) == 3
    assert sizes[1:] == [300, 310]
    assert (place / "study/tokenizers/1/tokenizer").is_dir()


def test_each_must_beat_bigrams_of_its_own_tokens(results: StudyResults, place: Path) -> None:
    there = plans.saved(read_study(place / "study/study.toml"), RunFolder(place / "study"))
    assert there is not None
    found = counted(there)
    assert len({each.learnt for each in found.values()}) == 3
    for name, arm in there.arms.items():
        text = arm.material.held_out
        tokens = len(text) - text.num_documents  # type: ignore[union-attr]
        bits = bigram_loss(arm.material, there.tokens_per_run) * tokens
        expected = bits / math.log(2) / text.num_bytes  # type: ignore[union-attr]
        assert found[name].learnt == pytest.approx(expected, rel=1e-12)
        assert found[name].learnt < 8.1


def test_a_diverged_run_counts_as_the_loss_it_started_from(place: Path) -> None:
    found = compare(
        *words("text.txt", f"{LARGER},optimizer.lr=1e9,max_grad_norm=none"),
        quiet=True,
        out="diverged",
        **{**OPTIONS, "tune_lr": False, "horizons": ()},
        size="given",
    )
    assert found.unit == "bits per byte"
    diverged = [run for run in found.runs if run.diverged]
    assert {run.variant for run in diverged} == {found.variants[1].name}
    assert all(run.loss == run.initial_loss < 8.1 for run in diverged)


def test_tokenizers_that_make_the_same_tokens_are_refused(place: Path) -> None:
    asked = words("text.txt", *(f"{KIND},data.tokenizer.vocab_size={n}" for n in (5000, 6000)))
    with pytest.raises(UserError, match=r"have the same tokens.* give less, or more text"):
        plan(*asked, **OPTIONS)
    with pytest.raises(UserError, match="a task has tokens of its own"):
        plan("modern", ":data.tokenizer.vocab_size=600", "data.text=mqar", **OPTIONS)


def test_tokenizers_without_bits_per_byte_are_refused_before_any_run(place: Path) -> None:
    inner = raw_bytes(["<|endoftext|>"])
    for name, step in {
        "lossy": normalizers.Lowercase(),
        "unknown": normalizers.Prepend("a"),
    }.items():
        inner.normalizer = step
        inner.save(str(place / f"{name}.json"))
        asked = words("text.txt", f":data.tokenizer.kind=file,data.tokenizer.path={name}.json")
        with pytest.raises(
            UserError, match=r"tokenizer that changes the text or has tokens without known bytes"
        ):
            plan(*asked, **OPTIONS)
