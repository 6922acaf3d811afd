"""The paper kit of a study: what it says, that LaTeX reads it, and that nothing is trained or read for it."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import presets
from archwright.lab.report.csv_files import tables
from archwright.lab.report.latex import escaped
from archwright.lab.report.page import study_page
from archwright.lab.report.paper import effects_table, methods, write_kit, write_paper
from archwright.lab.report.references import Work, bibliography, choices_of, cited_in, works_in
from archwright.lab.report.saved import RESULTS, open_study, save_results
from archwright.lab.results import StudyResults
from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from tests.lab import made_results as made
from tests.tiny import ROOT

NASTY = r"100% {a}_b & $x$ #1 ~^ \input{c} <d> é 中 − “q” @e"
MADE = [made.two_variants, made.several_horizons, made.spiking, made.incomplete]


def runs_of(results: StudyResults) -> dict[str, RunSpec]:
    """Return runs as the variants might have them."""
    first, *others = [variant.name for variant in results.variants]
    changed = load_run("modern").override("model.norm.kind=dyt", "model.position.kind=none")
    return {first: load_run("modern"), **dict.fromkeys(others, changed)}


def nasty() -> StudyResults:
    """A study with names that LaTeX would take for commands."""
    results = made.results_of(made.Made({"modern": 0.0, NASTY: 0.06, "alibi": -0.05}))
    like = made.several_horizons().effects
    effects = [
        replace(effect, multiplier=other.multiplier)
        for effect, other in zip(results.effects, like, strict=True)
    ]
    return replace(results, effects=effects, command=NASTY, notes=(NASTY,), device=NASTY)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit of a study with such names."""
    folder = tmp_path_factory.mktemp("kit") / "paper"
    write_kit(nasty(), runs_of(nasty()), folder)
    return folder


@pytest.mark.parametrize("make", [*MADE, made.twelve_variants, made.nothing_yet])
def test_results_are_read_back_as_they_were(
    make: Callable[[], StudyResults], tmp_path: Path
) -> None:
    results = replace(make(), folder=str(tmp_path))
    save_results(results, tmp_path)
    found = open_study(tmp_path)
    assert study_page(found).html() == study_page(results).html()
    assert tables(found) == tables(results)


def test_what_is_no_results_file_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"found no results\.json; expected the folder of a study"):
        open_study(tmp_path)
    save_results(made.two_variants(), tmp_path)
    whole = (tmp_path / RESULTS).read_text(encoding="utf-8")
    for damaged in (whole[:-9], "[]", whole.replace('"loss":', '"lost":'), '{"replicates": [1]}'):
        (tmp_path / RESULTS).write_text(damaged, encoding="utf-8")
        with pytest.raises(UserError, match="damaged, or written by another version"):
            open_study(tmp_path)


def test_studies_without_an_effect_are_refused(tmp_path: Path) -> None:
    save_results(made.nothing_yet(), tmp_path)
    with pytest.raises(UserError, match="found no effect yet"):
        write_paper(tmp_path, tmp_path / "paper")
    assert not (tmp_path / "paper").exists()


def test_without_matplotlib_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'archwright\[paper\]'"):
        write_kit(made.two_variants(), runs_of(made.two_variants()), tmp_path / "paper")
    assert not (tmp_path / "paper").exists()


def test_the_table_has_the_numbers_of_what_is_decided() -> None:
    results = made.twelve_variants()
    lines = effects_table(results).replace(r"\midrule", "").splitlines()
    rows = [line.removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r"\\ ")]
    rows += [line.removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r"\\")]
    shown = {row[0]: row[1:] for row in rows[1:]}
    assert {e.outcome for e in results.effects} >= {"better", "worse", "inconclusive"}
    for effect in results.effects:
        outcome, difference, share, _, seeds = shown[effect.variant]
        assert (outcome, seeds) == (effect.outcome, "5")
        if effect.outcome == "inconclusive":
            assert difference == share == "--"
            continue
        numbers = difference.replace("$-$", "-")
        ends = effect.interval.low, effect.interval.high
        assert [*map(float, re.findall(r"[-+][\d.]+", numbers))] == pytest.approx(
            [effect.estimate, *ends], abs=5e-5
        )
        assert float(share.replace("$-$", "-")) == pytest.approx(100 * effect.share, abs=5e-3)


def test_the_table_has_compute_and_its_bounds() -> None:
    lines = effects_table(made.several_horizons()).splitlines()
    assert any("less than 0.26" in line for line in lines if line.startswith("gelu"))
    [alibi] = [line for line in lines if line.startswith("alibi")]
    value, low, high = (1 / (0.98 * tokens) for tokens in (1.42, 1.7, 1.2))
    assert f"{value:.2f} ({low:.2f} to {high:.2f})" in alibi


def test_methods_state_the_settings_of_the_study_alone() -> None:
    results = made.twelve_variants()
    cited = {name: choices_of(run) for name, run in runs_of(results).items()}
    text = methods(results, cited)
    for fact in ("819,200 tokens in 400 steps", "163,584 parameters", "Made-up CPU 9000", "Holm"):
        assert fact in text
    inconclusive = [e.variant for e in results.effects if e.outcome == "inconclusive"]
    assert inconclusive
    for name in inconclusive:
        assert f"The comparison of {name} with modern is inconclusive" in text
        assert f"{name} is better" not in text
        assert f"{name} is worse" not in text
    one = made.fixed_rates()
    text = methods(one, {})
    assert "given, not tuned" in text
    assert "Holm" not in text
    spiking = methods(made.spiking(), {})
    assert "2 of 5 runs of modern spiked at lr 0.006; all were run again at 0.003." in spiking
    open_still = methods(made.incomplete(), {})
    assert "The study is not complete" in open_still
    assert all(escaped(note) in open_still for note in made.incomplete().notes)


def test_what_is_cited_is_in_the_bibliography_and_the_reverse(kit: Path) -> None:
    text = (kit / "methods.tex").read_text("utf-8")
    cited = {key for keys in re.findall(r"\\citep\{(.*?)\}", text) for key in keys.split(",")}
    listed = re.findall(r"^@\w+\{(.*),$", (kit / "references.bib").read_text("utf-8"), re.MULTILINE)
    assert sorted(cited) == sorted(listed)
    assert {"archwright", "zhangsennrich2019", "kazemnejad2023"} <= cited
    assert re.search(r"norm dyt~\\citep\{zhu2025", text)


def test_tex_files_are_balanced_and_have_no_letter_that_commands(kit: Path) -> None:
    for name in ("main.tex", "effects.tex", "methods.tex"):
        text = (kit / name).read_text("utf-8")
        bare = re.sub(r"\\\\|\\[{}%&$#_]", "", text)
        assert bare.count("{") == bare.count("}")
        stack: list[str] = []
        for kind, environment in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
            stack.append(environment) if kind == "begin" else None
            assert kind == "begin" or stack.pop() == environment
        assert not stack
        assert bare.count("$") % 2 == 0
        *lines, seal = bare.splitlines()
        assert seal.startswith("% archwright ")
        assert not any(c in line for line in lines for c in "%#中−“")
        assert r"\input{c}" not in text
    assert "[U+4E2D]" in (kit / "effects.tex").read_text("utf-8")


def test_charts_are_vectors_of_a_column_with_their_fonts(kit: Path) -> None:
    for name in ("effects", "horizons", "loss", "lr"):
        svg, pdf = (kit / f"{name}.svg").read_text("utf-8"), (kit / f"{name}.pdf").read_bytes()
        match = re.search(r'width="([\d.]+)pt"', svg)
        assert match
        assert float(match[1]) == pytest.approx(3.3 * 72)
        assert "<image" not in svg
        assert "<text" not in svg
        assert b"/Subtype /Image" not in pdf
        assert b"/FontFile2" in pdf
        assert b"/Type3" not in pdf


def test_the_same_results_make_the_same_files(kit: Path, tmp_path: Path) -> None:
    write_kit(nasty(), runs_of(nasty()), tmp_path)
    for file in kit.iterdir():
        if file.suffix in (".tex", ".bib", ".pdf", ".svg"):
            assert (tmp_path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("name", "ours"), [("main.tex", False), ("lr.pdf", True), ("loss.svg", True)]
)
def test_files_of_others_and_changed_ones_stay(
    name: str, ours: bool, kit: Path, tmp_path: Path
) -> None:
    content = (kit / name).read_bytes() * ours + b"mine\n"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="did not write, or that was changed since"):
        write_kit(made.two_variants(), runs_of(made.two_variants()), tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / name]
    assert (tmp_path / name).read_bytes() == content


def test_latex_compiles_the_kit(kit: Path, tmp_path: Path) -> None:
    if not (shutil.which("pdflatex") and shutil.which("bibtex")):
        pytest.skip("there is no pdflatex")
    shutil.copytree(kit, tmp_path, dirs_exist_ok=True)
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main"]
    for words in (latex, ["bibtex", "main"], latex, latex):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "main.log").read_text("utf-8", errors="replace")
    assert "There were undefined" not in log
    assert (tmp_path / "main.pdf").stat().st_size > 20_000


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ("(Zhang and Sennrich, 2019).", [Work("Zhang and Sennrich", "2019")]),
        ("Shazeer, 2019 (MQA)", [Work("Shazeer", "2019")]),
        ("He et al., 2020, DeBERTa, section 3.1", [Work("He et al.", "2020", "DeBERTa")]),
        ("in 16 bits (Kimi Team, 2025, Kimi Linear)", [Work("Kimi Team", "2025", "Kimi Linear")]),
        ("Fedus et al., 2021, eq. 4", [Work("Fedus et al.", "2021", "Switch Transformers")]),
        ("Peng et al., 2023, YaRN, section 3.3", [Work("Peng et al.", "2023", "YaRN")]),
        ("section 3.1: LayerNorm(x + Sublayer(x)), 1024 tokens", []),
        (None, []),
    ],
)
def test_works_are_read_from_sources(text: str | None, works: list[Work]) -> None:
    assert works_in(text) == works


def test_works_without_a_name_get_that_of_no_other_work() -> None:
    """Reviewed by hand: a new source with authors and year alone belongs here, or names its work."""
    text = ";".join(re.sub(r'\\*"', ";", file.read_text("utf-8")) for file in cited_in())
    bare = re.findall(r"[A-Z][\w-]*(?: and [A-Z]\w+| et al\.)?, \d{4}(?=[;)])", text)
    completed = {f"{w.who}, {w.year}" for name in bare for w in works_in(name) if w.name}
    known = "Beltagy Brown Devlin Hu Press Radford Shazeer Su Vaswani Wang"
    assert {name.split()[0].strip(",") for name in completed} <= {*known.split()}


def test_titles_are_of_works_that_sources_name() -> None:
    text = " ".join(" ".join(file.read_text("utf-8").split()) for file in cited_in())
    titles = tomllib.loads((presets.FOLDER / "works.toml").read_text("utf-8"))
    assert [name for name in titles if name not in text] == []
    assert all(re.fullmatch(r"\d{4}\.\d{5}", n) for _, *numbers in titles.values() for n in numbers)


def test_options_that_follow_from_others_cite_nothing() -> None:
    modern = choices_of(load_run("modern"))
    assert not any(words.startswith("embedding.dim") for words in modern)
    narrow = choices_of(load_run("modern").override("model.embedding.dim=64"))
    assert narrow["embedding.dim 64"] == [Work("Lan et al.", "2019", "ALBERT")]


def test_the_bibliography_cites_archwright_as_its_citation_file_does() -> None:
    cff = dict(
        line.split(": ", 1)
        for line in (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
        if re.match(r"(title|version|  - name): ", line)
    )
    own = bibliography({}).split("@misc")[1]
    assert f"author = {{{{{cff['  - name']}}}}}" in own
    assert f"title = {{{cff['title']}}}" in own
    assert cff["version"] in own


def test_an_entry_has_the_fields_that_are_known() -> None:
    bare = Work("Kimi Team", "2025").bibtex(["a@b"])
    assert "% a at b\n@misc{kimiteam2025,\n  author = {{Kimi Team}},\n  year = {2025},\n}" in bare
    whole = Work("Zhang and Sennrich", "2019").bibtex([])
    assert "title = {{Root Mean Square Layer Normalization}}" in whole
    assert "author = {Ba and others}" in Work("Ba et al.", "2016").bibtex([])
