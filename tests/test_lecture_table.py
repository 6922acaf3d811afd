"""The lecture's table of architectures against the one that `archwright list` derives from the presets:
what differs is a known mistake of the lecture's."""

import csv
from pathlib import Path

import pytest

from archwright.catalogue.table import rows
from archwright.spec.attention import LatentAttention, MaskedAttention, SoftmaxAttention
from archwright.spec.read import load, preset_names
from archwright.spec.unpublished import unpublished

Cells = dict[str, str]
Key = tuple[str, str]

PRESETS = {
    ("Original transformer", "2017"): "original-transformer",
    ("T5 (11B)", "2019"): "t5-11b",
    ("T5 (XXL 11B) v1.1", "2020"): "t5-v1.1-xxl",
    ("mT5", "2020"): "mt5-xxl",
    ("GPT", "2018"): "gpt",
    ("GPT2", "2019"): "gpt-2",
    ("GPT3 (175B)", "2020"): "gpt-3-175b",
    ("GPTJ", "2021"): "gpt-j-6b",
    ("LaMDA", "2021"): "lamda-137b",
    ("Anthropic LM (not claude)", "2021"): "anthropic-lm",
    ("Gopher (280B)", "2021"): "gopher-280b",
    ("GPT-NeoX", "2022"): "gpt-neox-20b",
    ("BLOOM (175B)", "2022"): "bloom-176b",
    ("OPT (175B)", "2022"): "opt-175b",
    ("PaLM (540B)", "2022"): "palm-540b",
    ("Chinchilla", "2022"): "chinchilla-70b",
    ("Mistral (7B)", "2023"): "mistral-7b",
    ("LLaMA2 (70B)", "2023"): "llama-2-70b",
    ("LLaMA (65B)", "2023"): "llama-65b",
    ("GPT4", "2023"): "gpt-4",
    ("Olmo 2", "2024"): "olmo-2-13b",
    ("Gemma 2 (27B)", "2024"): "gemma-2-27b",
    ("Nemotron-4 (340B)", "2024"): "nemotron-4-340b",
    ("Qwen 2 (72B) - same for 2.5", "2024"): "qwen-2-72b",
    ("Falcon 2 11B", "2024"): "falcon-2-11b",
    ("Ph3 (small) - same for ph4", "2024"): "phi-3-small",
    ("Llama 3 (70B)", "2024"): "llama-3-70b",
    ("Reka Flash", "2024"): "reka-flash",
    ("Command R+", "2024"): "command-r-plus",
    ("OLMo", "2024"): "olmo-7b",
    ("Qwen (14B)", "2024"): "qwen-14b",
    ("DeepSeek (67B)", "2024"): "deepseek-67b",
    ("Yi (34B)", "2024"): "yi-34b",
    ("Mixtral of Experts", "2024"): "mixtral-8x7b",
    ("Command A", "2025"): "command-a",
    ("Gemma 3", "2025"): "gemma-3-27b",
    ("SmolLM2 (1.7B)", "2025"): "smollm2-1.7b",
}

ALSO = {
    ("Qwen 2 (72B) - same for 2.5", "2024"): "qwen-2.5-72b",
    ("Ph3 (small) - same for ph4", "2024"): "phi-4",
}
"""Models that a row is said to hold for, too."""

NO_MODEL = ("GPT2", "2020")
"""A row of no model: its cells are those of T5 v1.1, which has a row of its own."""

WIRINGS = {
    "pre": ("Serial", "yes"),
    "pre+post": ("Serial", "yes"),
    "post": ("Serial", "no"),
    "output": ("Serial", "no"),
    "parallel": ("Parallel", "yes"),
    "parallel (2)": ("Parallel", "yes"),
    "serial": ("Serial", ""),
    "": ("", ""),
}
"""Whether a wiring is parallel, and whether it is pre-norm, as the lecture says it."""

LECTURE_WORDS = {
    "GELU": "GeLU",
    "GEGLU": "GeGLU",
    "ReLU²": "SqReLu",
    "learned": "Absolute",
    "sinusoidal": "Sine",
    "ALiBi": "Alibi",
    "relative (T5)": "Relative",
    "relative (XL)": "Relative",
    "RoPE + NoPE": "Hybrid (RoPE+NoPE)",
    "RoPE 1/4": "RoPE",
    "RoPE 1/2": "RoPE",
    "pre+post norm": "Pre+post norm",
    "score cap 50": "Logit soft capping",
    "logit cap 30": "Logit soft capping",
}

IN_TRAINING = {"Z-loss"}
"""What the lecture calls a stability trick and is a term of the loss, in no preset of a model."""


def read(name: str) -> list[Cells]:
    with (Path(__file__).parent / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def key(row: Cells) -> Key:
    return row["name"], row["year"]


LECTURE = {key(row): row for row in read("lecture_table.csv")}
CORRECTIONS = read("lecture_table_corrections.csv")
DERIVED = {row.name: row.cells for row in rows()}


def in_lecture_words(cells: Cells) -> Cells:
    """Return a derived row with the lecture's columns."""
    parallel, pre_norm = WIRINGS[cells["wiring"]]
    tricks = [LECTURE_WORDS.get(word, word) for word in cells["stability"].split(", ")]
    return {
        "year": cells["year"],
        "norm": cells["norm"],
        "parallel_layer": parallel,
        "pre_norm": pre_norm,
        "position": LECTURE_WORDS.get(cells["position"], cells["position"]),
        "activation": LECTURE_WORDS.get(cells["activation"], cells["activation"]),
        "stability": alphabetical(tricks),
    }


def alphabetical(tricks: list[str]) -> str:
    return ", ".join(sorted({*tricks} - IN_TRAINING))


@pytest.mark.parametrize("row", PRESETS, ids=PRESETS.values())
def test_a_row_follows_from_its_preset(row: Key) -> None:
    """An empty cell says nothing, except that there is no stability trick."""
    said = said_of(row)
    corrected = {c["column"]: c["corrected"] for c in CORRECTIONS if key(c) == row}
    derived = in_lecture_words(DERIVED[PRESETS[row]])
    expected = said | corrected
    assert {column: derived[column] for column in expected} == expected
    assert all(said[column] != text for column, text in corrected.items()), "a needless correction"


@pytest.mark.parametrize("row", ALSO, ids=ALSO.values())
def test_a_row_holds_for_the_other_model_that_it_names(row: Key) -> None:
    said, derived = said_of(row), in_lecture_words(DERIVED[ALSO[row]])
    assert {column: derived[column] for column in said} == said


def said_of(row: Key) -> Cells:
    """Return what a row says, without its name."""
    said = {c: text for c, text in LECTURE[row].items() if text or c == "stability"}
    said |= {"stability": alphabetical(said["stability"].split(", "))}
    return {column: text for column, text in said.items() if column != "name"}


def test_every_row_has_a_preset_or_a_reason() -> None:
    assert {*PRESETS, NO_MODEL} == {*LECTURE}
    assert len(PRESETS) == 37


def test_the_row_of_no_model_is_that_of_t5_v1_1() -> None:
    said, derived = said_of(NO_MODEL), in_lecture_words(DERIVED["t5-v1.1-xxl"])
    assert {column: derived[column] for column in said} == said


def test_every_correction_is_of_a_row_with_its_reason() -> None:
    assert all(key(c) in PRESETS and c["reason"] for c in CORRECTIONS)


@pytest.mark.parametrize("name", unpublished())
def test_what_is_unpublished_is_listed_with_what_is_public(name: str) -> None:
    model = unpublished()[name]
    assert name not in preset_names("models")
    assert model.known.items() <= DERIVED[name].items()
    assert DERIVED[name]["year"] in model.source


@pytest.mark.parametrize("name", preset_names("models"))
def test_every_model_has_its_year_and_the_widths_of_its_spec(name: str) -> None:
    cells, spec = DERIVED[name], load(name).resolved()
    assert 2017 <= int(cells["year"]) <= 2026
    assert cells["layers"] == str(spec.num_layers)
    if isinstance(spec.attention, LatentAttention):
        assert cells["heads"] == f"{spec.attention.num_heads} MLA"
    elif isinstance(spec.attention, SoftmaxAttention):
        heads = f"{spec.attention.num_heads}/{spec.attention.num_kv_heads}"
        assert cells["heads"].split(" + ")[0] == heads
    else:  # whose heads share no keys
        assert isinstance(spec.attention, MaskedAttention)
        assert cells["heads"].replace("/", " ").split()[0] == str(spec.attention.num_heads)
