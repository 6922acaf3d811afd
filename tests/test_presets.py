"""Every preset is good, within its lineage, and counted; published ones have the published size."""

import csv
import re
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from archwright import presets
from archwright.catalogue.parameter_counts import parameter_counts
from archwright.planning.cost import counts_of
from archwright.spec import absent
from archwright.spec.installed import preset_files
from archwright.spec.read import load, load_run, preset_names
from archwright.spec.rules import enforce, suspicions

MODELS = preset_names("models")
FOLDER = Path(str(presets.__path__[0]))
ANCHORS = ["modern", "textbook"]
RECURRENT = ["gated-deltanet", "hybrid-3-1"]
"""Recurrent relatives of `modern`, of any size."""
"""Models that nobody published."""


def read_table(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


SIZES = {row["name"]: row for row in read_table("published_parameters.csv")}
KNOWN = {"read", "recalled"}
"""A number was read in a public text, or is quoted from memory of its source."""
SUSPICIOUS = read_table("published_suspicions.csv")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_keeps_the_rules_and_says_where_it_comes_from(name: str) -> None:
    spec = load(name)
    enforce(spec)
    assert spec.name == name
    assert spec.source
    stated = tomllib.loads(preset_files("models")[name].read_text("utf-8"))
    assert "source" in stated


@pytest.mark.parametrize("name", MODELS)
def test_what_is_suspicious_is_so_as_published(name: str) -> None:
    """Published practice wins over a warning; each one that it wins over is listed with the reason."""
    found = [line.split(" is ")[0] for line in suspicions(load(name))]
    assert found == [row["value"] for row in SUSPICIOUS if row["name"] == name]


def test_every_published_model_has_its_published_size() -> None:
    assert sorted({*SIZES, *ANCHORS, *RECURRENT}) == MODELS
    assert all(row["source"] for row in SIZES.values())
    assert {row["known"] for row in SIZES.values()} <= KNOWN


@pytest.mark.parametrize("name", SIZES)
def test_a_model_has_as_many_parameters_as_published(name: str) -> None:
    """Within half a percent, or exactly the number published once it is rounded as that is."""
    published, rounding = read_count(SIZES[name]["parameters"])
    spec, of_what = load(name), SIZES[name]["counted"]
    if of_what.endswith(" rows"):
        spec = spec.override(f"vocab_size={of_what.removesuffix(' rows').replace(',', '')}")
    counts = parameter_counts(spec)
    assert counts is not None
    counted = counts.total
    if of_what == "no generator":
        counted -= counts.parts["generator"]
    if of_what == "no embedding":
        assert spec.vocab_size != "auto"
        counted -= spec.vocab_size * spec.dim * (1 if spec.head.tied else 2)
    assert abs(counted - published) <= max(published * 0.005, rounding / 2)


def read_count(text: str) -> tuple[float, float]:
    """Return a number such as 65.2B and the size of its last digit."""
    unit = {"M": 10**6, "B": 10**9, "T": 10**12}.get(text[-1], 1)
    number = Decimal(text.rstrip("MBT"))
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return float(number) * unit, 10.0**exponent * unit


HEADS = ("attention", "cross_attention", "encoder.attention")
TABLE_3 = {
    65: [],
    36: ["num_layers=2", "encoder.num_layers=2"],
    50: ["num_layers=4", "encoder.num_layers=4"],
    80: ["num_layers=8", "encoder.num_layers=8"],
    28: ["dim=256", *(f"{at}.head_dim=32" for at in HEADS)],
    168: ["dim=1024", *(f"{at}.head_dim=128" for at in HEADS)],
    53: ["feedforward.hidden_dim=1024", "encoder.feedforward.hidden_dim=1024"],
    90: ["feedforward.hidden_dim=4096", "encoder.feedforward.hidden_dim=4096"],
}
"""Millions of parameters of variations of the Transformer of 2017 in its paper's table 3."""


@pytest.mark.parametrize("millions", TABLE_3)
def test_the_sizes_of_table_3_go_with_one_number_of_rows(millions: int) -> None:
    """The paper says about 37,000 tokens; eight of its sizes say 41,000, whatever else a model has."""
    counts = parameter_counts(
        load("original-transformer").override("vocab_size=41000", *TABLE_3[millions])
    )
    assert counts is not None
    assert counts.total / 1e6 == pytest.approx(millions, abs=0.5)


@pytest.mark.parametrize("name", preset_names("runs"))
def test_a_recipe_keeps_the_rules(name: str) -> None:
    enforce(load_run(name).model)


@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_of_parameters_are_those_of_the_built_models(name: str) -> None:
    assert parameter_counts(load(name)) == counts_of(load(name))


@pytest.mark.parametrize("dim", [128, 256, 384, 1024, 4096])
@pytest.mark.parametrize("name", ANCHORS)
def test_the_anchors_work_at_any_size(name: str, dim: int) -> None:
    resolved = load(name).override(f"dim={dim}").resolved()
    assert resolved.attention.head_dim == dim // 8


def test_no_preset_is_called_absent_and_nearest_ones_exist() -> None:
    systems = tomllib.loads(absent.FILE.read_text("utf-8"))
    for name in MODELS:
        words = name.split("-")
        for end in range(1, len(words) + 1):  # electra of electra-base
            absent.refuse_absent("-".join(words[:end]))
    for system in systems.values():
        words = set(re.findall(r"[\w.]+-[\w.-]*\d\w+|[a-z]+-base", system["nearest"]))
        assert words <= {*MODELS}
