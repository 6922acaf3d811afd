"""Studies over a trainer of a few milliseconds, by the command line and by the library."""

import json
import math
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import archwright as aw
from archwright.cli import main
from archwright.lab.external.execution import gpu_groups, readings_of
from archwright.lab.external.study import compare_command
from archwright.spec.errors import UserError
from tests.tiny import command as cli
from tests.tiny import surroundings

TRAINER = """
import json, math, os, random, sys, time
variant, seed, lr, steps, out = sys.argv[1:6]
better, behaviour = variant.partition(" ")[::2]
lr, steps = float(lr), int(steps)
behave = os.environ.get("BEHAVE", "") if "me" in behaviour else ""
with open(os.path.join(out, "tries"), "a") as file:
    file.write("try\\n")
tries = len(open(os.path.join(out, "tries")).readlines())
if behave == "once" and tries == 1 or behave == "fail":
    print("some words before\\nRuntimeError: no such layer"); sys.exit(3)
if behave == "sleep" and seed != "0":
    import subprocess
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    open(os.path.join(out, "child"), "w").write(str(child.pid)); time.sleep(60)
if behave == "exit7" and lr > 2e-3:
    sys.exit(7)
same = random.Random(int(seed) if "apart" not in behaviour else variant + seed).gauss(0, .02)
own = random.Random(variant + seed + str(steps)).gauss(0, .002)
for i in range(1, 5):
    step = steps * i // 4
    loss = 3 - float(better) + same + own + 2 * (step + 1) ** -.3 + .05 * math.log(lr / 2e-3) ** 2
    if behave == "nan" and lr > 2e-3: loss = math.nan
    print("step", step, "loss", loss)
    print("key", os.environ.get("SOME_TOKEN"), *sys.argv[6:])
"""
SEED = 10
"""From here, six draws of two variants happen to be correlated negatively."""
COMMAND = f"{sys.executable} -I -S train.py {{variant}} {{seed}} {{lr}} {{steps}} {{out}}"
METRIC = r"stdout:step (?P<step>\d+) loss (?P<value>\S+)"
OPTIONS: dict[str, Any] = {"steps": 400, "lr": 2e-3, "metric": METRIC, "quiet": True, "out": "s"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trainer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINER)
    return tmp_path


def study(*variants: str, command: str = COMMAND, **options: Any) -> Any:
    return compare_command(command=command, variants=[*variants], **{**OPTIONS, **options})


def tries(folder: str = "s") -> dict[str, int]:
    """Return how often each run was started."""
    found = Path(folder, "runs").glob("*/out/tries")
    return {path.parts[-3]: len(path.read_text().splitlines()) for path in found}


def test_a_better_variant_is_found_with_its_compute() -> None:
    results = study("0", "0.05", jobs=2)
    (effect,) = results.effects
    assert effect.outcome == "better"
    expected = [
        random.Random(f"0.05{s}400").gauss(0, 0.002) - random.Random(f"0{s}400").gauss(0, 0.002)
        for s in effect.seeds
    ]
    assert effect.differences == pytest.approx([d - 0.05 for d in expected])
    assert effect.multiplier
    assert effect.multiplier.tokens > 1.2
    assert set(tries().values()) == {1}
    page = Path("s/report.html").read_text("utf-8")
    for words in (
        "Pairing",
        "not matched",
        "equal for all variants",
        "must set its end",
    ):
        assert words in page
    assert results.runs[0].curve[-1].step == 400


def test_costs_of_steps_turn_what_is_better_at_equal_steps() -> None:
    costs = {"0": 1.0, "0.01": 3.0}
    (effect,) = study("0", "0.01", cost_per_step=costs, early_stopping=False).effects
    assert effect.multiplier
    assert effect.multiplier.compute == pytest.approx(effect.multiplier.tokens / 3)


def test_a_finished_study_runs_nothing_again_and_an_edited_variant_does() -> None:
    for name in ("a", "b"):
        Path(name).write_text("0")
    text = COMMAND.replace("{variant}", "0 {variant}")  # the file is a further word
    Path("train.py").write_text(TRAINER.replace("sys.argv[1:6]", "[sys.argv[1], *sys.argv[3:7]]"))
    study("a", "b", command=text, seeds=2)
    before = tries()
    study("a", "b", command=text, seeds=2)
    assert tries() == before
    Path("b").write_text("1")
    study("a", "b", command=text, seeds=2)
    assert {n[0] for n in tries().keys() - before.keys()} == {"b"}


def test_changed_code_is_refused_unless_it_is_mixed() -> None:
    study("0", "0.05", seeds=2)
    Path("train.py").write_text(TRAINER + "\n# changed\n")
    with pytest.raises(UserError, match=r"made with other code .*--mix-code"):
        study("0", "0.05", seeds=2)
    study("0", "0.05", seeds=2, mix_code=True)
    assert set(tries().values()) == {1}


def test_another_study_in_the_folder_is_refused() -> None:
    study("0", "0.05", seeds=2)
    with pytest.raises(UserError, match=r"s contains another study \(seeds: 2 -> 3\)"):
        study("0", "0.05", seeds=3)
    Path("other").mkdir()
    Path("other/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="other is not a study and not empty"):
        study("0", "0.05", out="other")
    assert [path.name for path in Path("other").iterdir()] == ["notes.txt"]


def test_a_failed_run_is_tried_again_in_the_same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEHAVE", "once")
    results = study("0", "0.05 me", seeds=2)
    assert len(results.effects[0].seeds) == 2
    assert {name: n for name, n in tries().items() if name.startswith("0.05")}.values()
    assert {n for name, n in tries().items() if name.startswith("0.05")} == {2}


def test_a_second_failure_ends_the_study_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEHAVE", "fail")
    with pytest.raises(UserError) as stop:
        study("0", "0.05 me", seeds=2)
    lines = stop.value.lines
    assert re.match(r"0.05 me, seed \d+: failed twice: exit status 3", lines[0])
    assert "  RuntimeError: no such layer" in lines
    kept = {name for name in tries() if name.startswith("0-")}
    assert kept
    monkeypatch.setenv("BEHAVE", "")
    study("0", "0.05 me", seeds=2)
    assert {tries()[name] for name in kept} == {1}


def test_a_missing_metric_is_found_by_one_short_run() -> None:
    with pytest.raises(UserError) as stop:
        study("0", "0.05", metric=r"stdout:val (\S+)")
    assert "no line of the log matches val" in stop.value.lines[0]
    assert any(line.startswith("  step 20 loss") for line in stop.value.lines)
    assert len(tries()) == 1


def test_a_run_out_of_time_and_its_children_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEHAVE", "sleep")
    with pytest.raises(UserError, match=r"seed 2: failed twice: more than the 0.3 s of --timeout"):
        study("0", "0.05 me", seeds=2, tune_lr=False, first_seed=2, timeout=0.3)
    assert_ended()


def assert_ended() -> None:
    """Assert that no child of a trainer lives."""
    children = [int(path.read_text()) for path in Path("s/runs").glob("*/out/child")]
    assert children
    end = time.monotonic() + 5
    while any(map(is_alive, children)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(is_alive, children))


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


WORDS = ["compare", "--command", COMMAND, "--variants", "0", "0.05 me", "--steps", "400"]
WORDS += ["--lr", "2e-3", "--metric", METRIC, "--out", "s", "--seeds", "2", "--no-tune-lr"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_ends_children_and_a_killed_study_resumes(number: signal.Signals) -> None:
    words = cli(*WORDS, "--first-seed", "1")
    process = subprocess.Popen(words, env=surroundings(BEHAVE="sleep"), stderr=subprocess.PIPE)
    until(lambda: [*Path("s/runs").glob("*/out/child")])
    time.sleep(0.2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert b"go on with: archwright compare --command" in errors
        assert_ended()
    else:
        assert process.returncode == -9
    before = {n: t for n, t in tries().items() if (Path("s/runs") / n / "result.json").exists()}
    done = subprocess.run(
        cli(*WORDS, "--first-seed", "1"), env=surroundings(BEHAVE=""), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert_ended()
    assert before.items() <= tries().items()


@pytest.mark.parametrize("behaviour", ["nan", "exit7"])
def test_divergence_is_an_outcome(behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEHAVE", behaviour)
    results = study("0 me", "0.05 me", diverged_exit=7, seeds=6, lr=4e-3)
    diverged = [run for run in results.runs if run.diverged]
    assert diverged
    assert all(run.lr > 2e-3 for run in diverged)
    assert max(r.lr for r in results.replicates) <= 2e-3
    assert results.effects[0].outcome == "better"
    assert any("diverged; each counts as the highest loss" in note for note in results.notes)


def test_secrets_are_on_no_page_and_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "env-secret")
    again = f"archwright compare --command '{COMMAND} --hub-token arg-secret'"
    study("0", "0.05", command=f"{COMMAND} --hub-token arg-secret", seeds=2, again=again)
    logs = list(Path("s").rglob("log.txt"))
    assert "key env-secret --hub-token arg-secret" in logs[0].read_text()  # the trainer has them
    others = [p for p in Path("s").rglob("*") if p.is_file() and p.name != "log.txt"]
    assert not [p for p in others if re.search(b"(env|arg)-secret", p.read_bytes())]
    assert "--hub-token ***" in Path("s/report.html").read_text("utf-8")
    before = tries()
    study("0", "0.05", command=f"{COMMAND} --hub-token new-one", seeds=2)
    assert tries() == before


def test_seeds_that_do_not_pair_are_warned_of() -> None:
    apart = study(
        "0 apart", "0.05 apart", seeds=6, tune_lr=False, first_seed=SEED, early_stopping=False
    )
    losses = {(r.variant, r.seed): r.loss for r in apart.replicates}
    pairs = [[losses[v, SEED + i] for i in range(6)] for v in ("0 apart", "0.05 apart")]
    correlation = float(np.corrcoef(pairs)[0, 1])
    assert correlation < 0.1
    assert any(f"over 6 seeds is {correlation:.2f}" in note for note in apart.notes)
    paired = study("0", "0.05", seeds=6, tune_lr=False, out="t")
    assert not any("do not pair" in note for note in paired.notes)


def test_a_seed_that_changes_nothing_is_noticed() -> None:
    Path("train.py").write_text(
        TRAINER.replace("seed, lr,", "_, lr,").replace("lr, steps =", "seed = '1'; lr, steps =")
    )
    notes = study("0", "0.05", seeds=3, tune_lr=False).notes
    assert any("does {seed} reach the trainer?" in note for note in notes)


def test_steps_that_change_nothing_are_noticed() -> None:
    Path("train.py").write_text(TRAINER.replace("int(steps)", "50"))
    notes = study("0", "0.05", seeds=2, tune_lr=False).notes
    assert any("is of step 50: does {steps} reach the trainer?" in note for note in notes)


def test_a_twin_shows_whether_the_trainer_is_deterministic() -> None:
    notes = study("0", "0.05", seeds=2, twin=True).notes
    assert any("one seed, 20 steps, differ by 0: the trainer is deterministic" in n for n in notes)
    Path("train.py").write_text(TRAINER.replace("variant + seed + str(steps)", "None"))
    notes = study("0", "0.05", seeds=2, twin=True, out="t").notes
    assert any("seeds pair no better than that" in note for note in notes)


def test_a_dry_run_has_all_commands_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if word != "--no-tune-lr"]
    assert main([*words, "--dry-run"]) == 0
    *commands, _, counts = capsys.readouterr().out.splitlines()
    assert counts.endswith("Nothing was run.")
    # A check, three rates of each variant, and two pairs of three horizons.
    assert len(commands) == 1 + 2 * 3 + 2 * 2 * 3
    assert all(command.startswith(sys.executable) for command in commands)
    assert not Path("s").exists()
    least, most = map(int, re.search(r"(\d+) to (\d+) runs", counts).groups())  # type: ignore[union-attr]
    study("0", "0.05 me", seeds=2)
    assert least == len(commands) <= len(tries()) <= most


@pytest.mark.parametrize("bound", [{"max_runs": 9}, {"budget": "0.001s"}])
def test_bounds_leave_runs_out(bound: dict[str, Any]) -> None:
    results = study("0", "0.05", **bound)
    assert len(tries()) == bound.get("max_runs", 0)
    assert not results.complete
    assert any("was reached" in note for note in results.notes)
    study("0", "0.05")
    assert set(tries().values()) == {1}


def test_a_metric_may_be_maximized() -> None:
    Path("train.py").write_text(TRAINER.replace('"loss", loss', '"loss", 10 - loss'))
    (effect,) = (results := study("0", "0.05", maximize=True, unit="points")).effects
    assert (effect.outcome, effect.unit) == ("better", "minus points")
    assert re.search(r"the metric of 0\.05 is 0\.0\d+ points higher", results.verdict)
    assert "lower" not in results.verdict
    assert effect.margin > 0


def test_without_rates_and_steps_the_page_says_so() -> None:
    text = COMMAND.replace("{lr}", "2e-3").replace("{steps}", "400")
    results = study("0", "0.05", command=text, steps=None, lr=None, seeds=3)
    assert len(tries()) == 6
    page = Path("s/report.html").read_text("utf-8")
    assert "each variant is judged at its own" in page
    assert "no shorter horizons, no multiplier" in page
    assert results.effects[0].multiplier is None


def test_a_study_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text(
        f"command = {json.dumps(COMMAND)}\nsteps = 400\nlr = 2e-3\nseeds = 2\nmetric = {json.dumps(METRIC)}\n"
        '[variants]\nbase = "0"\n"new one" = "0.05"\n'
    )
    assert main(["compare", "mine.toml", "--quiet", "--seeds", "3"]) == 0
    out = capsys.readouterr().out
    assert "new one is better than base" in out
    assert Path("studies/mine/report.html").exists()
    assert main(["compare", "mine.toml", "--json", "--seeds", "3"]) == 0
    assert len(json.loads(capsys.readouterr().out)["effects"][0]["seeds"]) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": None}, "--lr: found {lr} in the command without --lr; expected both or neither"),
        ({"metric": ""}, "--metric: expected stdout:REGEX, jsonl:FILE:KEY or csv:FILE:COLUMN"),
        ({"size": "1M"}, "--size: not an option of another trainer, whose models are not known"),
        ({"budget": "40steps"}, '--budget: found "40steps"; expected a time such as 10h'),
        ({"cost_per_step": ["0"]}, '--cost-per-step: found "0"; expected VARIANT=X'),
        ({"cost_per_step": ["0=1"]}, "--cost-per-step: found no cost of 0.05"),
        ({"code": ["no.py"]}, "--code: no.py: no such file or folder"),
        ({"seeds": 1}, "seeds: found 1; expected at least 2"),
        ({"timeout": "soon"}, "timeout"),
        ({"command": f"no-such-program {COMMAND}"}, "no-such-program: No such file or directory"),
    ],
)
def test_mistakes(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        study("0", "0.05", **options)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (["0"], "variants: "),
        (["0", "0"], "variants: "),
        ([], "--variants: expected a baseline and one or more variants"),
    ],
)
def test_variants(variants: list[str], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        study(*variants)
    assert words in str(refusal.value)


def test_options_without_a_command_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "modern", ":norm.kind=layer", "--metric", "stdout:x"]) == 2
    assert "--metric: expected --command beside it" in capsys.readouterr().err


def test_runs_at_once_have_gpus_and_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,9")
    assert gpu_groups(2) == [["4", "5"], ["6", "7"]]
    with pytest.raises(UserError, match="found 5 visible GPUs; expected 6"):
        gpu_groups(6)
    begin = "import os, sys\nopen(os.path.join(sys.argv[5], 'env'), 'w').write(' '.join(os.environ[n] for n in ("
    begin += "'CUDA_VISIBLE_DEVICES', 'MASTER_PORT')))\n"
    Path("train.py").write_text(begin + TRAINER)
    study("0", "0.05", seeds=3, gpus_per_job=2)
    found = [path.read_text().split() for path in Path("s/runs").glob("*/out/env")]
    assert {gpus for gpus, _ in found} == {"4,5", "6,7"}
    with pytest.raises(UserError, match="--jobs: found 3; expected 2 at most"):
        study("0", "0.05", seeds=3, gpus_per_job=2, jobs=3)


def trainer(
    variant: Any, *, seed: int, lr: float, steps: int, out: Path
) -> list[tuple[int, float]]:
    (out / "tries").open("a").write("try\n")
    noise = random.Random(seed).gauss(0, 0.02) + random.Random(f"{variant}{seed}").gauss(0, 0.002)
    peak = 0.05 * math.log(lr / 2e-3) ** 2
    return [(s, 3 - variant + noise + peak + s**-0.3) for s in (steps // 2, steps)]


def test_a_python_function() -> None:
    with pytest.raises(ZeroDivisionError):
        aw.compare_runs(lambda variant, **_: 1 / 0, [0, 0.05], out="r", quiet=True)
    results = aw.compare_runs(
        trainer, {"base": 0, "new": 0.05}, steps=400, lr=1e-3, out="s", quiet=True
    )
    assert results.verdict.startswith("new is better than base")
    before = tries()
    aw.compare_runs(trainer, {"base": 0, "new": 0.05}, steps=400, lr=1e-3, out="s", quiet=True)
    assert tries() == before
    with pytest.raises(UserError, match="run: returned 'no'; expected a number, or a list"):
        readings_of("no")
    with pytest.raises(UserError, match="expected a number"):
        readings_of([(1, 2.0), (1,)])


def test_opening_a_study_runs_nothing() -> None:
    study("0", "0.05", seeds=2)
    before = {p: p.stat().st_mtime for p in Path("s/runs").rglob("*")}
    assert main([*WORDS, "--dry-run"]) == 0
    assert {p: p.stat().st_mtime for p in Path("s/runs").rglob("*")} == before
    assert Path("s/report.html").exists()
