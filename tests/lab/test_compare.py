"""A whole study, from words to a verdict: every number is that of a run which can be repeated alone."""

import csv
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

import archwright as aw
from archwright.lab.compare import compare, plan
from archwright.lab.design.command_line import Command, study_of
from archwright.lab.design.plan import LEAST_STEPS, STUDY, Arm, saved
from archwright.lab.design.planner import MFU, Planner
from archwright.lab.procedure.sweep import tuned
from archwright.lab.report.summary import announcement, held, results_of
from archwright.lab.report.terminal import as_json
from archwright.lab.results import StudyResults
from archwright.lab.running.scheduler import Execution
from archwright.lab.running.workers import Workers
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.feedforward import Hidden
from archwright.spec.read import read_study
from tests.lab.small import (
    OPTIONS,
    killed_twice_and_finished,
    losses,
    tabled_losses,
    words,
    working_in,
)
from tests.outside.test_contributing import FILES
from tests.tiny import archwright, command, surroundings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a text."""
    with working_in(tmp_path_factory.mktemp("lab")) as folder:
        yield folder


@pytest.fixture(scope="module")
def results(place: Path) -> StudyResults:
    """A study of two variants, two seeds and three rates, or more where the best is at an end."""
    return compare(*words("text.txt", ":norm.kind=layer"), quiet=True, out="study", **OPTIONS)


def test_every_variant_has_every_seed_at_a_grid_of_equal_size(results: StudyResults) -> None:
    assert results.complete
    assert [v.name for v in results.variants] == ["modern", "norm.kind=layer"]
    known = losses(results)
    for name, grid in results.grids.items():
        assert len(grid) == 3
        assert all((name, s, lr) in known for s in results.study.tuning_seed_numbers for lr in grid)
        assert [seed for n, seed, _ in known if n == name and seed < 2] == [0, 1]
        ratios = [b / a for a, b in pairwise(grid)]
        # A half or a quarter of a step where the valley is narrow.
        step = next(s for s in (3, 3**0.5, 3**0.25) if ratios[0] > s * 0.95)
        assert ratios == pytest.approx([step, step], rel=1e-3)


def test_fresh_seeds_are_compared_at_the_rate_that_others_found(results: StudyResults) -> None:
    known = {(r.variant, r.seed, r.lr): r.halves for r in results.runs}
    assert [(r.variant, r.seed) for r in results.replicates] == [
        (name, seed) for name in ("modern", "norm.kind=layer") for seed in (0, 1)
    ]
    tuning = results.study.tuning_seed_numbers
    assert not {0, 1} & {*tuning}
    for found in results.replicates:
        grid = results.grids[found.variant]
        pooled = [fmean(known[found.variant, seed, lr].tuning for seed in tuning) for lr in grid]
        assert found.lr == pytest.approx(tuned(pooled, grid).lr, rel=6e-3)
        assert found.loss == known[found.variant, found.seed, found.lr].judged
    [effect] = results.effects
    by = {(r.variant, r.seed): r.loss for r in results.replicates}
    assert list(effect.differences) == [by["norm.kind=layer", s] - by["modern", s] for s in (0, 1)]


def test_a_paper_kit_and_a_page_need_neither_text_nor_runs(
    results: StudyResults, place: Path, tmp_path: Path
) -> None:
    study = tmp_path / "study"
    shutil.copytree(place / "study", study)
    kept = {path: path.read_bytes() for path in study.rglob("*") if path.is_file()}
    done = archwright("report", "study", "--paper", "paper", cwd=tmp_path)
    names = ("main.tex", "effects.tex", "methods.tex", "references.bib")
    assert done.stdout.split()[:4] == [f"paper/{name}" for name in names], done.stderr
    assert "norm.kind=layer" in (tmp_path / "paper/effects.tex").read_text("utf-8")
    assert archwright("report", "study", cwd=tmp_path).stdout == "study/report.html\n"
    assert all(path.read_bytes() == content for path, content in kept.items())
    refused = archwright("report", "study", "study", "--paper", "paper", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--paper: expected the folder of one study" in refused.stderr


def test_a_run_trained_alone_reaches_the_same_loss_bit_for_bit(
    results: StudyResults, place: Path
) -> None:
    run = results.runs[-1]
    asked = RunFolder(place / "studies" / "runs" / run.key).spec
    alone = aw.train(asked, out=place / "alone", quiet=True)
    final = [r for r in alone.folder.metrics() if r["kind"] == "eval"][-1]
    assert final["nats_per_token"] == run.loss
    assert final["bits_per_byte"] == pytest.approx(run.bits_per_byte, rel=1e-12)


def test_variants_differ_in_what_was_asked_alone(results: StudyResults, place: Path) -> None:
    specs = [RunFolder(place / "studies" / "runs" / r.key).spec for r in results.runs]
    alike = {(s.batch_size, s.schedule, s.data, s.machine, s.model.context_length) for s in specs}
    assert len(alike) == 1
    assert len({s.evaluate.model_copy(update={"every": 1}) for s in specs}) == 1
    assert results.variants[1].changes[0].startswith("model.norm.kind:")
    sizes = [v.non_embedding for v in results.variants]
    assert abs(sizes[1] / sizes[0] - 1) <= 0.005


def test_folders_hold_the_same_numbers_as_the_results(results: StudyResults, place: Path) -> None:
    assert tabled_losses(place / "study") == losses(results)
    page = (place / "study" / "report.html").read_text(encoding="utf-8")
    for part in results.verdict.split(":")[0].split(" because "):  # in the headline, and below
        assert part in page


def test_a_finished_study_trains_nothing_again(results: StudyResults, place: Path) -> None:
    written = {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")}
    again = compare(*words("text.txt", ":norm.kind=layer"), quiet=True, out="study", **OPTIONS)
    assert losses(again) == losses(results)
    assert again.verdict == results.verdict
    assert {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")} == written


def test_studies_share_runs(results: StudyResults, place: Path) -> None:
    before = set((place / "studies" / "runs").iterdir())
    other = compare(*words("text.txt", ":feedforward.kind=gelu"), quiet=True, **OPTIONS)
    made, shared = (
        {r.key for r in (*s.runs, *s.shorter_runs) if r.seed < 2 and r.variant == "modern"}
        for s in (results, other)
    )
    # Tuning seeds differ, so that runs are shared if the learning rates agree.
    assert results.study.tuning_seed_numbers != other.study.tuning_seed_numbers
    lrs = [next(r.lr for r in s.replicates if r.variant == "modern") for s in (results, other)]
    assert len(made) == len(shared) == 2 + 4
    assert made == shared if lrs[0] == lrs[1] else not made & shared
    new = set((place / "studies" / "runs").iterdir()) - before
    assert len(new) == len(other.runs) + len(other.shorter_runs) - len(made & shared)


def test_runs_are_evaluated_on_their_way_only_where_that_is_shown(
    results: StudyResults, place: Path
) -> None:
    """The rate is placed, and what compute is worth is told, by the losses at the end."""
    for run in (*results.runs, *results.shorter_runs):
        compared = run.seed < 2 and run.tokens == results.tokens_per_run
        steps = [p.tokens / results.tokens_per_run for p in run.curve]
        assert steps == ([0.5, 1.0] if compared else [run.tokens / results.tokens_per_run])
    study = place / "study"
    planned = saved(read_study(study / STUDY), RunFolder(study))
    assert planned is not None
    assert planned.run("modern", planned.study.tuning_seed_numbers[0], 0.0).evaluate.every == 20
    assert planned.run("modern", 1, 0.0).evaluate.every == 10
    assert planned.run("modern", 1, 0.0, 0.5).evaluate.every == 10


def test_the_first_pairs_are_trained_for_shorter_horizons(results: StudyResults) -> None:
    whole = results.tokens_per_run
    found = [(r.variant, r.seed, r.tokens) for r in results.shorter_runs]
    assert sorted(found) == sorted(
        (name, seed, whole // part)
        for name in ("modern", "norm.kind=layer")
        for seed in (0, 1)
        for part in (4, 2)
    )
    lrs = {r.variant: r.lr for r in results.replicates}
    assert all(run.lr == lrs[run.variant] for run in results.shorter_runs)
    # In so few steps each is worse than at the whole horizon.
    ends = {(r.variant, r.seed): r.loss for r in results.replicates}
    assert all(r.halves.judged > ends[r.variant, r.seed] for r in results.shorter_runs if r.halves)


def test_the_command_of_a_shorter_run_trains_it(results: StudyResults, place: Path) -> None:
    run = results.shorter_runs[0]
    _, _, *given = shlex.split(run.command)
    alone = aw.train(*given[: given.index("--out")], out=place / "shorter", quiet=True)
    records = [r for r in alone.folder.metrics() if r["kind"] == "eval"]
    assert records[-1]["nats_per_token"] == run.loss


def test_results_are_json(results: StudyResults) -> None:
    found = json.loads(as_json(results))
    assert found["verdict"] == results.verdict
    assert [e["outcome"] for e in found["effects"]] == [e.outcome for e in results.effects]
    assert {run["key"] for run in found["runs"]} == {run.key for run in results.runs}


def test_pairs_are_added_to_a_study_that_was_inconclusive(
    results: StudyResults, place: Path
) -> None:
    given = words("text.txt", ":norm.kind=layer")
    shutil.copytree(place / "study", place / "added")
    ahead = plan(*given, out="added", add_seeds=2, **OPTIONS)
    assert announcement(ahead).endswith("then seeds 0 to 3")
    assert announcement(plan(*given, out="added", **OPTIONS)).endswith("then seeds 0 to 1")
    more = compare(*given, quiet=True, out="added", add_seeds=2, **OPTIONS)
    assert results.effects[0].outcome == "inconclusive"
    assert more.study.ends == (2, 4)
    assert [r.seed for r in more.replicates if r.variant == "modern"] == [0, 1, 2, 3]
    before, after = losses(results), losses(more)
    assert {cell: after[cell] for cell in before} == before
    assert "--add-seeds" not in more.command
    # The same command without it knows what was added; with it, it adds again.
    again = compare(*given, quiet=True, out="added", **OPTIONS)
    assert losses(again) == after
    assert again.effects[0].interval == more.effects[0].interval


def test_a_study_that_time_cut_short_has_ended_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = words("text.txt", ":norm.kind=layer")
    # Of runs that others made nothing would be left out.
    options = {**OPTIONS, "seeds": 3, "horizons": (0.5,), "runs": "cut-runs"}

    def leave_out(execution: Execution, workers: Workers) -> bool:
        execution.shorter_pairs = 0
        return len(execution.seeds) == 3 and bool(execution.seeds.pop())

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "_late", leave_out)
        cut = compare(*given, quiet=True, out="cut", **options)
    assert [r.seed for r in cut.replicates if r.variant == "modern"] == [0, 1]
    assert cut.effects[0].outcome == "inconclusive"
    assert "1 of 3 seeds was left out: the budget did not pay for them." in cut.notes
    assert "Shorter horizons were left out: the budget did not pay for them." in cut.notes
    assert not cut.shorter_runs
    again = compare(*given, quiet=True, out="cut", **options)
    assert losses(again) == losses(cut)
    assert (again.verdict, again.notes) == (cut.verdict, cut.notes)
    more = compare(*given, quiet=True, out="cut", add_seeds=1, **options)
    assert more.study.ends == (2, 3)
    assert [r.seed for r in more.replicates if r.variant == "modern"] == [0, 1, 2]


def test_pairs_are_added_to_nothing_but_what_has_ended(results: StudyResults, place: Path) -> None:
    given = words("text.txt", ":norm.kind=layer")
    with pytest.raises(
        UserError, match=r"adds to a study that has ended, and there is none in new"
    ):
        compare(*given, out="new", add_seeds=2, **OPTIONS)
    shutil.copytree(place / "study", place / "waiting")
    with pytest.raises(
        UserError, match=r"runs of the study are still to be made; let it end first"
    ):
        compare(*given, out="waiting", runs="empty-runs", add_seeds=2, **OPTIONS)
    for number in (0, -1):
        for verb in (compare, plan):
            with pytest.raises(
                UserError, match=rf"--add-seeds: found {number}; expected 1 or more"
            ):
                verb(*given, out="study", add_seeds=number, **OPTIONS)


def test_a_size_below_all_that_are_made_is_refused(results: StudyResults, place: Path) -> None:
    given = words("text.txt", ":norm.kind=layer")
    with pytest.raises(UserError, match=r'size: found "3"; .* --size 6144 or more'):
        plan(*given, out="small", size="3", **OPTIONS)
    plan(*given, out="small", size="6144", **OPTIONS)


def test_a_study_that_learnt_nothing_ends_early_and_goes_on_by_its_own_advice(place: Path) -> None:
    """The command that it prints is pasted; the folder of the first budget stays as it is."""
    given = {**OPTIONS, "early_stopping": True, "runs": "early-runs", "tuning_seeds": 1}
    found = compare(*words("text.txt", ":norm.kind=layer"), quiet=True, out="early", **given)
    assert {run.variant for run in found.runs} == {"modern"}
    assert not found.replicates
    sentence = r"is inconclusive because modern learnt no more than a bigram model .* 20 steps"
    assert re.search(sentence, found.verdict)
    assert "Not trained further, as more seeds change nothing: modern." in found.notes
    line = found.verdict.rpartition(": ")[2].removesuffix(".")
    assert line == found.command.replace("20steps", "500steps")
    before = {f: f.stat().st_mtime_ns for f in (place / "early").rglob("*") if f.is_file()}
    done = archwright(*shlex.split(line)[1:], "--dry-run", cwd=place)
    assert "each run: 500 steps" in done.stdout, done.stderr
    again = compare(
        *words("text.txt", ":norm.kind=layer"),
        quiet=True,
        out="early",
        **given | {"budget": "24steps"},
    )
    assert again.folder == "early/budget-24steps"
    assert {f: f.stat().st_mtime_ns for f in before} == before
    with pytest.raises(UserError, match="no variant is open"):
        compare(*words("text.txt", ":norm.kind=layer"), out="early", add_seeds=2, **given)


def test_another_study_in_the_same_folder_is_refused(results: StudyResults) -> None:
    with pytest.raises(UserError, match=r"study holds another study \(seeds: 2 -> 3\)"):
        compare(*words("text.txt", ":norm.kind=layer"), out="study", **OPTIONS | {"seeds": 3})


def test_one_failing_run_does_not_stop_the_rest(results: StudyResults, place: Path) -> None:
    shutil.copytree(place / "study", place / "failing")
    shutil.copytree(place / "studies" / "runs", place / "failing-runs")
    broken = RunFolder(place / "failing-runs" / results.runs[0].key)
    broken.metrics_file.unlink()
    text = broken.environment_file.read_text().replace('"held_out"', '"missing"')
    broken.environment_file.write_text(text)
    given = words("text.txt", ":norm.kind=layer")
    found = compare(*given, quiet=True, out="failing", runs="failing-runs", **OPTIONS)
    failed = [r for r in found.runs if r.failed]
    assert [(r.variant, r.seed, r.lr) for r in failed] == [
        (results.runs[0].variant, results.runs[0].seed, results.runs[0].lr)
    ]
    assert len({(r.variant, r.seed) for r in found.runs}) == 8
    assert any("failed" in note for note in found.notes)


def test_a_diverged_run_counts_as_the_loss_it_started_from(place: Path) -> None:
    found = compare(*words("text.txt", ":optimizer.lr=1e12"), quiet=True, tune_lr=False, **OPTIONS)
    wild = [r for r in found.runs if r.variant == "optimizer.lr=1e12"]
    assert all(r.diverged and r.loss == r.initial_loss for r in wild)
    assert all(4 < r.loss < 8 for r in wild)
    assert len(found.effects[0].differences) == 2
    assert any("6 of 12 runs diverged" in note for note in found.notes)


@pytest.mark.release
def test_choices_from_outside_are_compared_and_asked_for_again(place: Path) -> None:
    """A norm, and the optimizer of CONTRIBUTING.md."""
    file = place / "centered_norm.py"
    shutil.copy(Path(__file__).parents[1] / "outside" / "centered_norm.py", file)
    (place / "my_optimizers.py").write_text(FILES["my_optimizers.py"], "utf-8")
    changes = (":norm.kind=centered", ":optimizer.kind=heavy_ball")
    asked = [*words("text.txt", *changes), "--budget", "20steps", "--seeds", "2"]
    asked += ["--no-early-stopping"]
    asked += ["--evaluation-tokens", "2048", "--no-tune-lr", "--out", "outside"]
    parts = ["--parts", str(file), "--parts", "my_optimizers.py"]
    done = archwright("compare", *asked, *parts, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "norm.kind=centered" in done.stdout
    assert "optimizer.kind=heavy_ball" in done.stdout
    with (place / "outside" / "runs.csv").open(newline="", encoding="utf-8") as rows:
        assert all(
            f"--parts {file} --parts my_optimizers.py" in row["command"]
            for row in csv.DictReader(rows)
        )
    without = archwright("compare", *asked, cwd=place)
    assert without.returncode == 2
    assert without.stderr == (
        "archwright: outside was made with other choices from outside: give --parts centered_norm.py "
        "--parts my_optimizers.py, unchanged, or another --out\n"
    )


def test_length_is_judged_where_positions_reach(place: Path) -> None:
    found = compare(
        *words("text.txt", ":position.kind=learned"),
        quiet=True,
        tune_lr=False,
        **OPTIONS,
        lengths=(2,),
    )
    reached = {r.variant: r.lengths for r in found.runs}
    assert 0 < reached["modern"][64] < 8
    assert math.isinf(reached["position.kind=learned"][64])


def test_a_plan_trains_nothing(place: Path) -> None:
    before = set(place.rglob("*"))
    estimated = plan(*words("text.txt", ":norm.kind=rms,norm.eps=1e-3"), **OPTIONS)
    # Of each variant two pairs at three lengths, and three rates of two tuning seeds. Two rates more of the baseline.
    assert estimated.num_runs == 2 * (2 * 3 + 2 * 3) + 2
    assert estimated.seconds > 0
    assert {p for p in set(place.rglob("*")) - before if "cache" not in p.parts} == set()


def test_what_a_variant_sets_is_what_is_trained(place: Path) -> None:
    """Matching takes another width, and a mask shows less than the whole text."""
    words_ = words("text.txt", ":feedforward.hidden_dim=64", ":attention.mask.kind=window")
    estimated = plan(*words_, tune_lr=False, **OPTIONS)
    found = estimated.arms
    base, narrow, window = (arm.run.model for arm in found.values())
    assert isinstance(narrow.feedforward, Hidden)
    assert (narrow.feedforward.hidden_dim, base.dim) == (64, 32)
    assert narrow.dim > base.dim
    assert window.attention.model_dump()["mask"]["size"] == base.context_length // 4
    said = announcement(estimated)
    assert f"dim {narrow.dim}" in said
    assert "attention.mask.size 8 (texts have 32)" in said


def test_sizes_that_words_do_not_set_are_said_before_and_after(place: Path) -> None:
    """Five layers of latent attention can be matched by a narrower model alone."""
    variant = "attention.kind=latent,num_layers=5"
    words_ = ("modern", f":{variant}", "data.text=text.txt")
    options = OPTIONS | {"size": "0.05M", "evaluation_tokens": 1024}
    found = plan(*words_, **options)
    narrow = found.arms[variant.replace(",", ":")]
    dim = narrow.run.model.dim
    assert dim < found.baseline.run.model.dim == 48
    assert f"dim {dim} (modern 48)" in announcement(found)
    assert 'differs in attention.kind "latent" ("softmax")' in announcement(found)
    unequal = {row.what: row.by_variant for row in held(found) if not row.equal}
    assert unequal["dim"] == {"modern": "48", narrow.name: str(dim)}
    assert "attention.num_heads" not in unequal
    execution = Execution(found, place, place / "runs")
    said = results_of(execution, Command(found.study, place), complete=False).notes
    assert any(
        f"{narrow.name} also has" in note and f"dim {dim} (modern 48)" in note for note in said
    )


def test_recurrences_differ_by_their_options_and_have_a_state(place: Path) -> None:
    """Two variants of one kind: the plan names what each sets, and the page how much decoding keeps."""
    keys = "attention.kind=none,position.kind=none,recurrence.kind=linear,recurrence.head_dim=16"
    delta, gated = f":{keys},recurrence.decay.kind=none", f":{keys},recurrence.num_heads=3"
    options = OPTIONS | {"size": "0.05M", "evaluation_tokens": 1024}
    found = plan("modern", delta, gated, "data.text=text.txt", **options)
    said = announcement(found).splitlines()
    differs = [line for line in said if "differs in" in line]
    assert ['recurrence.decay.kind "none"' in line for line in differs] == [True, False]
    assert all('recurrence.kind "linear" ("none")' in line for line in differs)
    base, _, three = found.variants()
    model = found.baseline.run.model
    heads = model.attention.heads(model.dim)
    keys_and_values = 2 * heads["num_kv_heads"] * heads["head_dim"] * 2
    assert base.cache_bytes == model.num_layers * model.context_length * keys_and_values
    # States in float32, and three tokens before convolutions of queries, keys and values in 16 bits.
    state = 3 * 16 * 16 * 4 + 3 * (3 * 3 * 16) * 2
    assert three.cache_bytes == three.num_layers * state


def test_what_cannot_be_matched_is_refused_by_name(place: Path) -> None:
    words_ = ("modern", ":feedforward.hidden_dim=2048", "data.text=text.txt", "textbook")
    with pytest.raises(
        UserError, match=r"^feedforward.hidden_dim=2048: cannot have the size of modern \(dim 48\)"
    ):
        plan(*words_, **OPTIONS | {"size": "0.05M", "evaluation_tokens": 1024})


def test_a_large_study_is_planned_from_counted_flops(place: Path) -> None:
    """Nothing is built or timed: a step would take minutes."""
    options = OPTIONS | {"size": "1B", "evaluation_tokens": 1024}
    given = ("modern", ":norm.kind=layer", "data.text=text.txt")
    started = time.process_time()
    found = plan(*given, **options)
    assert time.process_time() - started < 20
    assert "times are counted from FLOPs" in announcement(found)
    arm = found.baseline
    flops = arm.counts.flops_per_token * arm.run.tokens_per_step
    step = found.decisions.least_seconds(flops) / MFU
    assert found.costs["modern"].step == pytest.approx(step)
    # A budget in time that pays for no step is refused with one that pays for all.
    with pytest.raises(
        UserError, match=r"pays for 0 steps in .*: archwright compare .* --budget \d+h "
    ):
        plan(*given, **options | {"budget": "10m"})


def test_a_size_that_is_slower_than_its_flops_gives_way_to_a_smaller_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(planner: Planner, found: Mapping[str, Arm], *_: object) -> int:
        if found["modern"].run.model.dim > 48:
            raise UserError("budget: too few steps")
        return LEAST_STEPS

    monkeypatch.setattr(Planner, "_steps", steps)
    monkeypatch.setattr(Planner, "_sizes_for_budget", lambda *_: [2e5, 1e5, 5e4])
    given = ("modern", ":norm.kind=layer", "data.text=text.txt")
    options = OPTIONS | {"budget": "10m", "evaluation_tokens": 1024}
    assert plan(*given, **options).baseline.run.model.dim == 48


def test_a_budget_of_few_steps_is_refused_with_a_command_of_one_that_can_answer(
    place: Path,
) -> None:
    given = words("text.txt", ":norm.kind=layer")
    options = OPTIONS | {"early_stopping": True, "seeds": 10}
    with pytest.raises(UserError) as caught:
        compare(*given, quiet=True, out="my study", **options | {"budget": "4s"})
    (line,) = caught.value.lines
    assert f"expected {LEAST_STEPS} or more" in line
    assert not (place / "my study").exists()
    asked = Command(study_of(*given, **options), place, out="my study")
    again = re.escape(asked.again(budget="LONGER")).replace("LONGER", r"\dm")
    assert re.search(f": {again}$", line)


def test_nothing_is_trained_where_two_variants_are_one(place: Path) -> None:
    """Also where matching has made them one: a file that differs in the hidden width alone."""
    before = set(place.rglob("*"))
    text = 'base = "modern"\n[feedforward]\nhidden_dim = 160\n'
    (place / "h160.toml").write_text(text, encoding="utf-8")
    for act in (plan, compare):
        with pytest.raises(UserError) as caught:
            act(*words("text.txt", "h160.toml"), tune_lr=False, **OPTIONS)
        (line,) = caught.value.lines
        assert '"h160.toml" and "modern" are the same model' in line
        assert line.endswith("what words set stays, such as :feedforward.hidden_dim=160")
    new = {path for path in set(place.rglob("*")) - before if "cache" not in path.parts}
    assert new == {place / "h160.toml"}


@pytest.mark.release
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_at_any_moment_a_study_ends_with_the_same_numbers(
    results: StudyResults, place: Path
) -> None:
    """The scheduler and single workers are killed; what was finished stays, and nothing differs."""
    kept, found = killed_twice_and_finished(
        place, ":norm.kind=layer", "processes", kill_a_worker=True
    )
    assert len(kept) >= 4
    assert found == losses(results)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_ctrl_c_keeps_what_is_trained_and_says_how_to_go_on(place: Path) -> None:
    again = command(
        "compare",
        *words("text.txt", ":norm.kind=layer"),
        *("--budget", "3000steps", "--seeds", "2", "--parallelism", "processes"),
        *("--out", "stopped", "--runs", "stopped-runs"),
    )
    process = subprocess.Popen(
        again, cwd=place, env=surroundings(), stderr=subprocess.PIPE, text=True
    )
    while not any((place / "stopped-runs").glob("*/metrics.jsonl")) and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    assert "stopped; what is trained is kept, go on with: archwright compare" in said
    assert "Traceback" not in said
    started = [RunFolder(f.parent) for f in (place / "stopped-runs").glob("*/metrics.jsonl")]
    assert any(run.checkpoints() for run in started)
