"""Exported folders are read by transformers 4.57 with the same logits, or the export says that they are not."""

import copy
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from archwright import hf
from archwright.hf.configs import spec_of
from archwright.hf.families import FAMILIES
from archwright.hf.older_readers import difference
from archwright.hf.saving import config_of
from archwright.spec.errors import UserError
from tests.hf.library import ENTRIES, build, randomise, save, transformers
from tests.tiny import ROOT

OLDER = ("transformers==4.57.1", "huggingface-hub<1", "tokenizers<0.23")
READ = """
import json, pathlib, sys, warnings
import torch, transformers
from archwright.hf.verifying import _compare, _theirs, load
warnings.simplefilter("ignore")
found = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    own = load(folder)
    try:
        theirs = _theirs(folder, own, torch.float32)
        found[folder.name] = _compare(own, theirs, torch.float32, None)[0].agrees
    except Exception as error:
        found[folder.name] = "does not recognize" if "does not recognize" in str(error) else False
print(json.dumps([transformers.__version__, found]))
"""


def scaled(kind: str, **keys: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 30_000.0, **keys}


def by_type(full: dict[str, Any], window: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full, "sliding_attention": window}}


YARN = scaled("yarn", factor=4.0, original_max_position_embeddings=16)
LONG = scaled("longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8)
LONG["original_max_position_embeddings"] = 16
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3 longrope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16}),
    "llama longrope": ("llama", {"rope_parameters": LONG | {"factor": 4.0}}),
    "llama dynamic": ("llama", {"rope_parameters": scaled("dynamic", factor=2.0)}),
    "gemma3 linear": ("gemma3", by_type(scaled("linear", factor=8.0), scaled("default"))),
    "gemma3 bases": ("gemma3", by_type(scaled("default"), scaled("default", rope_theta=700.0))),
    "olmo3 yarn": ("olmo3", by_type(YARN, scaled("default"))),
    "olmo3 bases": ("olmo3", by_type(YARN, scaled("default", rope_theta=700.0))),
    "deepseek": ("deepseek_v3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "gpt_oss plain": ("gpt_oss", {"rope_parameters": scaled("default")}),
    "modernbert": ("modernbert", by_type(scaled("default"), scaled("default", rope_theta=700.0))),
}
"""Kinds of scaling, and bases by type of layer, that no entry has."""
DEFAULT = {"rope_scaling": None, "rope_theta": 30_000.0}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "phi3 longrope",
            {
                "rope_scaling": {
                    "type": "longrope",
                    "short_factor": [1.0] * 8,
                    "long_factor": [2.0] * 8,
                },
                "original_max_position_embeddings": 16,
            },
        ),
        ("llama dynamic", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
        (
            "gemma3 linear",
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 3e4},
        ),
        ("gemma3 bases", DEFAULT | {"rope_local_base_freq": 700.0}),
        ("gpt_oss plain", DEFAULT),
        ("modernbert", {"global_rope_theta": 30_000.0, "local_rope_theta": 700.0}),
    ],
)
def test_older_keys_stand_next_to_newer_ones(name: str, expected: dict[str, Any]) -> None:
    entry, changes = CASES[name]
    kind, keys = ENTRIES[entry]["model_type"], ENTRIES[entry]["kwargs"]
    theirs = transformers.AutoConfig.for_model(kind, **copy.deepcopy(keys | changes))
    config = config_of(spec_of(theirs.to_dict(), "config.json", ""), FAMILIES[theirs.model_type])
    assert {key: config.get(key) for key in expected} == expected
    assert "rope_parameters" in config


def test_a_family_that_the_older_library_computes_otherwise_is_named(tmp_path: Path) -> None:
    ours = hf.load(save(randomise(build("gemma2")), tmp_path / "in"))
    expected = (
        f"{tmp_path / 'out'}: transformers 4.57 computes other logits unless it is loaded with "
        'attn_implementation="eager"; transformers 5 reads it correctly'
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(expected)}$"):
        hf.save(ours.model, tmp_path / "out")


def test_a_family_that_the_older_library_cannot_read_is_named() -> None:
    apart = {"model_type": "marian", "share_encoder_decoder_embeddings": False}
    for config in ({"model_type": "deberta"}, {"model_type": "deberta-v2"}, apart):
        assert difference(config) == "cannot read it"
    assert difference(apart | {"share_encoder_decoder_embeddings": True}) == ""


@pytest.mark.release
def test_the_older_library_computes_the_same_or_is_named(tmp_path: Path) -> None:
    """In an environment of its own; torch is that of this one."""
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    if subprocess.run([*install, *OLDER], capture_output=True, check=False).returncode:
        pytest.skip(f"{', '.join(OLDER)} cannot be installed here")
    named = set()
    for name, (entry, changes) in (CASES | {name: (name, {}) for name in ENTRIES}).items():
        try:
            ours = hf.load(save(randomise(build(entry, **changes)), tmp_path / "in" / name))
        except UserError:  # a family that is not read
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hf.save(ours.model, tmp_path / "out" / name)
        named |= {name for warning in caught if "transformers 4.57" in str(warning.message)}
    paths = os.pathsep.join([str(site), str(ROOT)])
    read = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    version, found = json.loads(read.stdout.splitlines()[-1])
    assert version == "4.57.1"
    known = {name: agrees for name, agrees in found.items() if agrees in (True, False)}
    assert len(known) > 100
    assert {name for name, agrees in known.items() if not agrees} == named & known.keys()
