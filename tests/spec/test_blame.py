from pathlib import Path

from archwright.spec.overrides import flatten
from archwright.spec.read import Origin, load_with_blame

BASE = """
source = "Base paper"
dim = 64
[norm]
kind = "layer"
eps = 1e-3
[attention]
bias = true
[layer_kinds.local.norm]
kind = "rms"
[sources]
norm = "Norm paper"
"attention.bias" = "Bias paper"
"""
CHILD = """
base = "base.toml"
source = "Child paper"
num_layers = 3
[attention.bias]
query = false
[residual]
kind = "post"
[layer_kinds.local.norm]
eps = 0.1
"""


def test_each_value_has_the_file_and_source_that_set_it(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "child.toml").write_text(CHILD)
    blame = load_with_blame(tmp_path / "child.toml").blame
    assert blame["dim"] == Origin("base.toml", "Base paper")
    assert blame["norm.eps"] == Origin("base.toml", "Norm paper")
    assert blame["norm.bias"] == Origin("default")
    assert blame["attention.bias.out"] == Origin("base.toml", "Bias paper")
    assert blame["attention.bias.query"] == Origin("child.toml", "Child paper")
    assert blame["num_layers"] == Origin("child.toml", "Child paper")
    assert blame["layer_kinds.local.norm.kind"] == Origin("base.toml", "Base paper")
    assert blame["layer_kinds.local.norm.eps"] == Origin("child.toml", "Child paper")
    assert blame["feedforward.kind"] == Origin("default")


def test_the_options_of_another_kind_are_defaults(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "child.toml").write_text('base = "base.toml"\n[norm]\nkind = "rms"\n')
    blame = load_with_blame(tmp_path / "child.toml").blame
    assert blame["norm.kind"] == Origin("child.toml")
    assert blame["norm.eps"] == Origin("default")  # not the base's, which went with its kind
    assert "norm.bias" not in blame


def test_blame_covers_every_value_and_no_name(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    loaded = load_with_blame(tmp_path / "base.toml")
    values = flatten(loaded.spec.model_dump(exclude={"name", "source", "sources"}))
    assert set(loaded.blame) == set(values)
