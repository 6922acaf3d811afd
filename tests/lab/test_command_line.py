"""Words become a study, and a study the words that ask for it."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from archwright.cli.compare_verb import ABOUT
from archwright.cli.main import main
from archwright.lab.compare import _check_place, _place
from archwright.lab.design.command_line import Command, study_of
from archwright.lab.design.plan import STUDY
from archwright.lab.design.plan_file import PLAN
from archwright.spec.errors import UserError
from archwright.spec.read import load_study, study_names, to_toml
from archwright.spec.study_spec import OPTIONS, StudySpec


def command(study: StudySpec, folder: Path, **options: Any) -> str:
    return str(Command(study, folder, **options))


def test_the_first_word_is_the_baseline_and_keys_are_for_all() -> None:
    found = study_of("textbook", "data.text=a.txt", "modern", ":norm.kind=rms", "dim=64", seeds=4)
    assert found.baseline == ("textbook",)
    assert found.variants == {"modern": ("modern",), "norm.kind=rms": ("norm.kind=rms",)}
    assert found.common == ("data.text=a.txt", "model.dim=64")
    assert found.seeds == 4
    assert found.name == "textbook-modern-norm.kind-rms"


def test_a_study_is_called_by_its_name_or_file_or_given_as_it_is(tmp_path: Path) -> None:
    assert study_of("norm-kind") == load_study("norm-kind")
    assert study_of("norm-kind", "model.dim=96", seeds=3).common == ("model.dim=96",)
    # What a study gives to all may be given otherwise.
    shorter = study_of("windows", "context_length=64")
    assert shorter.common == ("model.context_length=64",)
    line = "archwright compare windows model.context_length=64"
    assert command(shorter, Path("studies/windows")) == line
    file = tmp_path / "mine.toml"
    file.write_text('baseline = ["modern"]\nlengths = [2]\n[variants]\n"a" = ["textbook"]\n')
    assert study_of(str(file)).name == "mine"
    given = StudySpec(variants={"x": ("dim=8",)}, name="given")
    assert study_of(given, tune_lr=False) == given.override("tune_lr=false")


def test_a_copy_that_was_edited_is_asked_for_by_its_file(tmp_path: Path) -> None:
    """A study that comes along goes by its name, with options and keys of its own; another one does not."""
    shipped, folder = load_study("windows"), Path("studies/windows")
    assert command(shipped.override("seeds=7"), folder) == "archwright compare windows --seeds 7"
    fewer = dict(list(shipped.variants.items())[:-1])
    for copy in (
        shipped.model_copy(update={"variants": fewer}),
        shipped.model_copy(update={"common": ()}),
        shipped.model_copy(update={"baseline": ("textbook",)}),
    ):
        assert command(copy, folder) == "archwright compare studies/windows/study.toml"


def test_a_command_says_where_runs_are_kept_if_not_where_they_are_by_default() -> None:
    study = study_of("textbook", "modern")
    line = command(study, Path("studies/x"), runs="/shared/pool")
    assert line == "archwright compare textbook modern --runs /shared/pool"
    assert "--runs" not in command(study, Path("studies/x"), runs="studies/runs")


@pytest.mark.parametrize(
    ("word", "option"),
    [("seeds=5", "--seeds 5"), ("budget=5m", "--budget 5m"), ("seed=7", "--first-seed 7")],
)
def test_an_option_written_as_a_key_is_refused_with_the_option(word: str, option: str) -> None:
    with pytest.raises(UserError) as caught:
        study_of("modern", ":norm.kind=layer", word)
    assert caught.value.lines == (f"{word}: an option of the study; give {option}",)


@pytest.mark.parametrize(
    "line",
    [
        "archwright compare textbook modern",
        "archwright compare modern :norm.kind=layer modern:norm.kind=rms:norm.eps=0.1 model.dim=64 --budget 20m",
        "archwright compare norm-kind --seeds 7 --match flops --lengths 2,4",
        "archwright compare positions data.text=a.txt --no-tune-lr --size 0.5M",
        "archwright compare textbook modern --budget 400steps --horizons none",
        "archwright compare positions --lengths none",
    ],
)
def test_a_command_asks_for_the_study_that_it_came_from(line: str) -> None:
    words = shlex.split(line)[2:]
    options = {}
    while "--" in "".join(words):
        i = next(i for i, word in enumerate(words) if word.startswith("--"))
        if words[i].startswith("--no-"):
            options[words.pop(i)[5:].replace("-", "_")] = False
            continue
        options[words[i][2:].replace("-", "_")] = words[i + 1]
        del words[i : i + 2]
    assert command(study_of(*words, **options), Path("studies/x")) == line


def test_a_study_with_names_of_its_own_is_asked_for_by_its_file() -> None:
    given = StudySpec(variants={"narrow": ("dim=8",)}, name="given")
    assert command(given, Path("studies/given")) == ("archwright compare studies/given/study.toml")


def test_a_command_with_another_budget_asks_for_the_same_study(tmp_path: Path) -> None:
    """By its words, by its name, and by the user's file, of which the copy in a refused study's folder goes."""
    plain = Command(study_of("modern", ":norm.kind=layer", budget="3m"), Path("studies/x"))
    assert plain.again(budget="9m") == "archwright compare modern :norm.kind=layer --budget 9m"
    shipped = Command(study_of("norm-kind", seeds=4), Path("studies/norm-kind"))
    assert shipped.again(budget="9m") == "archwright compare norm-kind --budget 9m --seeds 4"
    file = tmp_path / "mine.toml"
    file.write_text('budget = "3m"\n[variants]\n"a" = ["textbook"]\n')
    own = Command(study_of(str(file), seeds=4), Path("studies/mine"), file=str(file))
    assert own.again(budget="9m") == f"archwright compare {file} --budget 9m --seeds 4"
    given = StudySpec(variants={"narrow": ("dim=8",)}, name="given")
    line = Command(given, Path("studies/given")).again(budget="9m")
    assert line == "archwright compare studies/given/study.toml --budget 9m"


def test_an_advised_budget_is_shown_even_if_it_is_the_default() -> None:
    command = Command(study_of("modern", ":norm.kind=layer", budget="3m"), Path("x"))
    assert command.again(budget=StudySpec().budget).endswith("--budget 10m")


def test_another_rate_is_given_to_one_variant_or_where_words_cannot_to_all() -> None:
    words = study_of("modern", ":norm.kind=layer,optimizer.lr=1", "textbook")
    asked, key = Command(words, Path("studies/x")), "optimizer.lr=0.3"
    line = "archwright compare modern:optimizer.lr=0.3 :norm.kind=layer:optimizer.lr=1 textbook"
    assert asked.again_from("modern", key) == line
    line = "archwright compare modern :norm.kind=layer:optimizer.lr=0.3 textbook"
    assert asked.again_from("norm.kind=layer:optimizer.lr=1", key) == line
    shipped = Command(study_of("norm-kind"), Path("studies/norm-kind"))
    line = "archwright compare norm-kind optimizer.lr=0.3 --out studies/norm-kind-2"
    assert shipped.again_from("LayerNorm", key) == line


def test_the_same_study_with_another_budget_is_kept_inside_its_folder(tmp_path: Path) -> None:
    study, folder = study_of("modern", ":norm.kind=layer", budget="3m"), tmp_path / "x"
    assert _place(folder, study) == folder
    folder.mkdir()
    (folder / STUDY).write_text(to_toml(study), "utf-8")
    (folder / PLAN).write_text("{}", "utf-8")
    larger = study.override("budget=15m", "size=0.05M")
    assert _place(folder, study) == folder
    assert _place(folder, larger) == folder / "budget-15m-size-0.05M"
    _check_place(folder / "budget-15m-size-0.05M", larger)
    # More seeds are added, and other variants are another study.
    for other in (study.override("seeds=20"), study_of("modern", ":norm.kind=none", budget="15m")):
        assert _place(folder, other) == folder
        with pytest.raises(UserError, match=rf"folder of its own: --out {folder}-2$"):
            _check_place(folder, other)


def test_every_option_is_a_field_and_the_help_names_the_studies() -> None:
    assert set(OPTIONS) <= set(StudySpec.model_fields)
    assert "{studies}" in ABOUT
    assert len(study_names()) >= 15


@pytest.mark.parametrize(
    ("text", "margin", "loss", "compute"),
    [
        ("1% of the loss", "1% of the loss", 0.01, None),
        ("0.5 % loss", "0.5% of the loss", 0.005, None),
        ("10%", "10% of compute", None, 0.1),
        ("10% of compute", "10% of compute", None, 0.1),
    ],
)
def test_a_margin_is_a_share_of_the_loss_or_of_compute(
    text: str, margin: str, loss: float | None, compute: float | None
) -> None:
    study = study_of("modern", ":norm.kind=layer", margin=text)
    assert (study.margin, study.margin_of_loss, study.margin_of_compute) == (margin, loss, compute)
    assert study_of("modern", ":norm.kind=layer", margin=margin) == study
    again = shlex.split(command(study, Path("x")))
    assert again[-2:] == (["--margin", margin] if margin != StudySpec().margin else again[-2:])


@pytest.mark.parametrize("text", ["10", "0.01", "0%", "100%", "1% of", "1% tokens", "-1%", "%"])
def test_a_margin_without_a_unit_is_refused_with_both(text: str) -> None:
    with pytest.raises(UserError) as caught:
        study_of("modern", ":norm.kind=layer", margin=text)
    (line,) = caught.value.lines
    assert line.endswith(
        'a share of compute, such as "10%", or of the loss, such as "1% of the loss"'
    )


def test_a_margin_of_compute_needs_shorter_runs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "modern", ":norm.kind=layer", "--margin", "10%", "--horizons", "none"]
    assert main(words) == 2
    assert 'margin: found "10% of compute" without shorter runs' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("procedure", '"sweep"', "procedure: gone in this version; leave it out"),
        ("tune_baseline", "true", "tune_baseline: gone; give batch_size=N for all"),
        ("equivalence_margin", "0.01", "equivalence_margin: gone; give margin, such as"),
    ],
)
def test_options_of_earlier_versions_are_named_with_their_replacement(
    tmp_path: Path, option: str, value: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as caught:
        study_of("modern", ":norm.kind=layer", **{option: value})
    assert caught.value.lines[0].startswith(line)
    file = tmp_path / "old.toml"
    file.write_text(f'baseline = ["modern"]\n{option} = {value}\n[variants]\na = ["gpt-2"]\n')
    with pytest.raises(UserError) as caught:
        load_study(str(file))
    (said,) = caught.value.lines
    assert said.startswith(f"old.toml: {line}")
    flag = option.replace("_", "-")
    assert main(["compare", "modern", ":norm.kind=layer", f"--{flag}", value]) == 2
    assert f"--{flag}: {line.partition(': ')[2]}" in capsys.readouterr().err
