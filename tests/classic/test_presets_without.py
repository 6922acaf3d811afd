"""Families and presets where archwright/classic is missing."""

import json
from pathlib import Path

import pytest

from archwright.hf import FAMILIES, families
from archwright.spec.installed import preset_files
from tests.classic.test_without import run


def test_the_list_leaves_its_presets_out(copy: Path) -> None:
    names = {line.split()[0] for line in run(copy, "list") if line}
    special = {name for name, file in preset_files("models").items() if "classic" in file.parts}
    assert "reformer" in special
    assert not names & special
    assert names >= preset_files("models").keys() - special


@pytest.mark.parametrize("preset", ["modern", "t5-base", "bert-base", "original-transformer"])
def test_other_presets_are_shown(preset: str, copy: Path) -> None:
    assert run(copy, "show", preset)[0].startswith(preset)


@pytest.mark.parametrize("words", [("show", "reformer"), ("train", "longt5-base", "--dry-run")])
def test_its_presets_are_one_line(words: tuple[str, ...], copy: Path) -> None:
    assert run(copy, *words, code=2) == [
        f"archwright: {words[1]}: a preset of archwright.classic, which is missing from this installation; "
        "reinstall archwright"
    ]


def test_its_families_are_unknown(copy: Path) -> None:
    usual = families.families_in(families)
    assert {"reformer", "xlnet", "led"} <= FAMILIES.keys() - usual.keys()
    assert [line.split()[0] for line in run(copy, "list", "families")[1:-1] if line] == sorted(
        usual
    )
    (copy / "checkpoint").mkdir()
    (copy / "checkpoint" / "config.json").write_text(json.dumps({"model_type": "longformer"}))
    assert run(copy, "import", "checkpoint", code=2)[-1] == (
        f"archwright: checkpoint/config.json: model_type: found 'longformer'; expected one of {len(usual)} families "
        '(see archwright list families). Did you mean "roformer"?'
    )
