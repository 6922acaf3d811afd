"""Conditions on the table of architectures, and how it fits a terminal."""

import json
from typing import Any

import pytest

from archwright.cli import main
from archwright.cli.architectures_table import LEAST_WIDTH
from archwright.cli.listings import listing
from tests.cli.typing_commands import error_lines

ROWS: list[dict[str, str]] = listing("models")["rows"]


def found(capsys: pytest.CaptureFixture[str], *words: str) -> set[str]:
    """Return the names of the models that are listed."""
    assert main(["list", *words, "--format", "json"]) == 0
    records: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return {record["model"] for record in records}


def names(**cells: str) -> set[str]:
    """Return the models with these cells."""
    return {row["model"] for row in ROWS if cells.items() <= row.items()}


def test_conditions_hold_together(capsys: pytest.CaptureFixture[str]) -> None:
    layer = names(norm="LayerNorm")
    assert found(capsys, "norm=layer") == found(capsys, "norm=LayerNorm") == layer
    recent = {row["model"] for row in ROWS if int(row["year"]) >= 2024}
    assert names(year="2024") <= recent
    assert found(capsys, "norm=layer", "year>=2024") == layer & recent
    assert found(capsys, "models", "year<2024") == {row["model"] for row in ROWS} - recent
    unknown = {row["model"] for row in ROWS if not row["norm"]}
    assert unknown
    assert found(capsys, "norm!=layer") == {row["model"] for row in ROWS} - layer - unknown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["mixer=latent"],
            {
                "deepseek-v2",
                "deepseek-v2-lite",
                "deepseek-v3",
                "glm-4.7-flash",
                "kimi-k2",
                "kimi-linear-48b-a3b",
                "ling-3.0-flash",
            },
        ),
        (["heads=MLA", "parameters<20B"], {"deepseek-v2-lite"}),
        (
            ["position=NoPE", "experts!=none"],
            {
                "granite-4.0-h-small",
                "granite-4.0-h-tiny",
                "jamba-v0.1",
                "kimi-linear-48b-a3b",
                "llama-4-maverick",
                "llama-4-scout",
                "nemotron-3-nano-30b-a3b",
                "nemotron-3-super-120b-a12b",
                "trinity-mini",
                "trinity-nano",
            },
        ),
        (["experts=2 of 8"], {"grok-1", "mixtral-8x7b"}),
        (["tied=true", "context>=200k", "dim>=8192"], {"command-a"}),
        (["tied=yes", "context>200k", "dim>8192"], {"command-a"}),
        (["num_kv_heads=1", "year=2022"], {"palm-540b"}),
        (["qk norm=RMSNorm", "dim=1152"], {"gemma-3-1b"}),
        (["feedforward=bilinear"], set()),
        (["parameters>=1.5T"], {"switch-c"}),
        (["olmo-3"], {"olmo-3-7b", "olmo-3-32b"}),
        (["LLAMA-4", "maverick"], {"llama-4-maverick"}),
    ],
)
def test_values(words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert found(capsys, *words) == expected


def test_a_word_of_a_cell_is_a_whole_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gemma-3-27b" in names(wiring="pre+post")
    both = names(wiring="pre + output")  # layers of two kinds
    assert found(capsys, "wiring=pre") == names(wiring="pre") | both


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("norm=lyer", 'norm: found "lyer", which no model has'),
        ("norm=lyer", 'Did you mean "layer"?'),
        ("mixer=latnt", 'Did you mean "latent"?'),
        ("mxer=latent", 'Did you mean "mixer"?'),
        ("attention.msk.kind=causal", 'Did you mean "attention.mask.kind"?'),
        ("norm>=3", "norm>=3: norm is not a number; expected norm=VALUE or norm!=VALUE"),
        ("year>=new", 'year>=new: found "new"; expected a number, such as 7B'),
        ("year", 'quote what holds < or >: "year>=VALUE"'),
        ("year=", "year=: expected a value"),
        ("modles", 'Did you mean "models"?'),
        ("hyena-7b", '"hyena-7b": Hyena (Poli et al., 2023) has long convolutions'),
        ("rwkv-4-169m", "rwkv-7-0.1b is RWKV-7"),
    ],
)
def test_what_is_not_there(word: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = error_lines(capsys, "list", word)
    assert part in line


def test_a_system_that_is_not_there_is_named_by_show_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert error_lines(capsys, "show", "hyena") == error_lines(capsys, "list", "hyena")
    assert "no such preset" in error_lines(capsys, "show", "hyenas")[0]


def test_models_of_each_year(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "norm=layer", "--by-year"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for year in sorted({row["year"] for row in ROWS}):
        of_year = names(year=year)
        both = of_year & names(norm="LayerNorm")
        assert [year, str(len(both)), "of", str(len(of_year))] in lines
    assert main(["list", "--by-year"]) == 0
    assert ["2017", "3"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("columns", [40, 60, 79, 80, 100, 200])
def test_columns_are_left_out_where_the_terminal_is_narrow(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["list", "models"]) == 0
    table, *rest = capsys.readouterr().out.split("\n\n")
    lines = table.splitlines()
    assert max(map(len, lines)) <= max(columns, LEAST_WIDTH)
    assert len(lines) == len(ROWS) + 1
    heads = ["model", "year", "parameters", "norm", "wiring", "position", "heads", "activation"]
    shown = lines[0].split()
    assert shown == heads[: len(shown)]
    assert len(shown) >= 3
    if columns == 200:
        assert shown == heads
    else:
        left_out = f"left out, as the terminal is narrow: {', '.join(heads[len(shown) :])};"
        assert rest[0].startswith(left_out)


def test_what_no_terminal_reads_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("sys.__stdout__", None)
    assert main(["list", "models"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("activation")


def test_columns_of_shape(capsys: pytest.CaptureFixture[str]) -> None:
    shape = {"dim_over_layers": "42.7", "head_dim": "128", "heads_over_dim": "16"}
    assert "t5-11b" in names(**shape, hidden_over_dim="64")
    assert "llama-3-8b" in names(dim_over_layers="128", heads_over_dim="1", hidden_over_dim="3.5")
    assert "gemma-4-31b" in names(head_dim="256 + 512")  # layers of two kinds
    assert "deepseek-v3" in names(head_dim="192", heads_over_dim="3.43")  # latent attention
    assert "mamba-130m" in names(head_dim="", heads_over_dim="", hidden_over_dim="")
    wide = {row["model"] for row in ROWS if float(row["dim_over_layers"] or 0) > 200}
    assert found(capsys, "dim_over_layers>200") == wide
    assert {"gopher-280b", "bloom-176b"} <= wide


@pytest.mark.parametrize("format", ["text", "csv", "markdown", "json"])
def test_named_columns_are_shown(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpt-2-xl", "--columns", "layers,dim over layers", "--format", format]
    assert main(["list", *words]) == 0
    shown = capsys.readouterr().out
    assert "48" in shown
    assert "33.3" in shown
    assert "LayerNorm" not in shown
    if format == "json":
        record = {"model": "gpt-2-xl", "layers": 48, "dim_over_layers": 33.3, "unpublished": ""}
        assert json.loads(shown) == [record]


def test_named_columns_exist(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = error_lines(capsys, "list", "gpt-2", "--columns", "layers,aspect")
    assert line.startswith('--columns: got "aspect", expected one of year,')
