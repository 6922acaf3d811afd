"""A published model as a file of its own, without a base."""

from pathlib import Path

import pytest

from archwright.cli import main
from archwright.spec.objectives import Objective
from archwright.spec.read import diff, load, load_run, load_with_blame, preset_names, starting_file
from archwright.spec.run_rules import enforce_run


@pytest.mark.parametrize("part", range(8))
def test_it_reads_back_as_the_same_model(part: int, tmp_path: Path) -> None:
    for name in preset_names("models")[part::8]:
        published, file = load_with_blame(name), tmp_path / f"{name}.toml"
        file.write_text(starting_file(published.spec, published.objective), "utf-8")
        again = load_with_blame(file)
        assert again.spec == published.spec
        assert again.objective == published.objective
        enforce_run(load_run(file))


def test_it_has_no_base_and_no_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mixtral-8x7b", "--toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "dim = 4096" in lines
    assert "[feedforward.expert]" in lines
    assert not [line for line in lines if line.startswith(("base", "name", "[encoder", "[init"))]


def test_what_was_changed_has_no_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    words = ["residual.kind=deepnorm", "dim=256", "num_layers=4"]
    assert main(["show", "modern", *words, "--toml"]) == 0
    file.write_text(capsys.readouterr().out, "utf-8")
    mine = load(file)
    assert diff(mine, load("modern").override(*words)) == []
    assert "residual" in load("modern").sources
    assert [*mine.sources] == [path for path in load("modern").sources if path != "residual"]
    assert main(["check", str(file)]) == 0
    assert ": OK" in capsys.readouterr().out


def test_an_objective_that_is_not_the_usual_one() -> None:
    published = load_with_blame("bert-base")
    text = starting_file(published.spec, published.objective)
    assert isinstance(published.objective, Objective)
    assert f'[objective]\nkind = "{published.objective.kind}"' in text
    assert "[objective]" not in starting_file(load("modern"), load_run("modern").objective)
