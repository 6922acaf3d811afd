"""The lecture's table of architectures, derived from the presets: what differs is a known mistake of
the table."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.spec.attention import SoftmaxAttention
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.norms import NoNorm
from archwright.spec.read import load

Row = dict[str, str]

PRESETS = {
    ("GPT", "2018"): "gpt",
    ("GPT2", "2019"): "gpt-2",
    ("GPT3 (175B)", "2020"): "gpt-3-175b",
    ("GPTJ", "2021"): "gpt-j-6b",
    ("LaMDA", "2021"): "lamda-137b",
    ("Gopher (280B)", "2021"): "gopher-280b",
    ("GPT-NeoX", "2022"): "gpt-neox-20b",
    ("BLOOM (175B)", "2022"): "bloom-176b",
    ("OPT (175B)", "2022"): "opt-175b",
    ("PaLM (540B)", "2022"): "palm-540b",
    ("Chinchilla", "2022"): "chinchilla-70b",
    ("Mistral (7B)", "2023"): "mistral-7b",
    ("LLaMA2 (70B)", "2023"): "llama-2-70b",
    ("LLaMA (65B)", "2023"): "llama-65b",
    ("Olmo 2", "2024"): "olmo-2-13b",
    ("Gemma 2 (27B)", "2024"): "gemma-2-27b",
    ("Nemotron-4 (340B)", "2024"): "nemotron-4-340b",
    ("Qwen 2 (72B) - same for 2.5", "2024"): "qwen-2-72b",
    ("Falcon 2 11B", "2024"): "falcon-2-11b",
    ("Ph3 (small) - same for ph4", "2024"): "phi-4",
    ("Llama 3 (70B)", "2024"): "llama-3-70b",
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
"""The rows that have a preset so far."""

WORDS = {
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "learned": "Absolute",
    "t5": "Relative",
    "transformer_xl": "Relative",
    "alibi": "Alibi",
    "rope": "RoPE",
    "relu": "ReLU",
    "gelu": "GeLU",
    "squared_relu": "SqReLu",
    "geglu": "GeGLU",
    "swiglu": "SwiGLU",
}
PRE_NORM = {"pre", "parallel", "sandwich"}


def read(name: str) -> list[Row]:
    with (Path(__file__).parent / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def key(row: Row) -> tuple[str, str]:
    return row["name"], row["year"]


TABLE = {key(row): row for row in read("lecture_table.csv")}
CORRECTIONS = read("lecture_table_corrections.csv")


def layers(spec: ModelSpec) -> list[LayerSpec]:
    kinds = dict.fromkeys(spec.layers.names(spec.num_layers))
    return [spec.layers_by_kind[kind] for kind in kinds]


def positions(spec: ModelSpec) -> str:
    found = {layer.position.kind for layer in layers(spec)}
    return "Hybrid (RoPE+NoPE)" if found == {"rope", "none"} else WORDS[found.pop()]


COLUMNS: dict[str, Callable[[ModelSpec], str]] = {
    "norm": lambda spec: WORDS[spec.norm.kind],
    "parallel_layer": lambda spec: "Parallel" if spec.residual.kind == "parallel" else "Serial",
    "pre_norm": lambda spec: "yes" if spec.residual.kind in PRE_NORM else "no",
    "position": positions,
    "activation": lambda spec: WORDS[spec.feedforward.kind],
}


@pytest.mark.parametrize("row", PRESETS, ids=PRESETS.values())
def test_a_row_follows_from_its_preset(row: tuple[str, str]) -> None:
    spec, said = load(PRESETS[row]), TABLE[row]
    found = {column: read_off(spec) for column, read_off in COLUMNS.items() if said[column]}
    corrected = {c["column"]: c["corrected"] for c in CORRECTIONS if key(c) == row}
    assert found == {column: said[column] for column in found} | corrected
    assert all(said[column] != value for column, value in corrected.items()), (
        "a needless correction"
    )


@pytest.mark.parametrize("row", PRESETS, ids=PRESETS.values())
def test_what_a_row_says_of_stability_is_in_its_preset(row: tuple[str, str]) -> None:
    """The z-loss belongs to training and is in no preset of a model."""
    spec = load(PRESETS[row])
    assert isinstance(spec.attention, SoftmaxAttention)
    has = {
        "Logit soft capping": spec.head.softcap != "none",
        "Pre+post norm": spec.residual.kind == "sandwich",
        "QK-norm": not isinstance(spec.attention.qk_norm, NoNorm),
    }
    said = TABLE[row]["stability"].split(", ")
    assert all(has[word] for word in said if word and word.lower() != "z-loss")


def test_every_correction_is_of_a_row_with_its_reason() -> None:
    assert all(key(c) in PRESETS and c["reason"] for c in CORRECTIONS)
