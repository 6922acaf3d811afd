"""Overrides by nested dicts in Python equal overrides by dotted texts."""

import pytest

import archwright as aw


def test_nested_dicts_are_dotted_keys() -> None:
    model = aw.load("modern").override(dim=256, attention={"num_kv_heads": 2})
    assert model == aw.load("modern").override("dim=256", "attention.num_kv_heads=2")
    assert model.attention.kind == "softmax"
    window = {"mask": {"kind": "window", "size": 8}}
    assert model.override(attention=window) == model.override(
        "attention.mask.kind=window", "attention.mask.size=8"
    )


def test_a_run_takes_tables_of_its_model() -> None:
    run = aw.load_run_spec("modern")
    expected = run.override("model.dim=64", "model.attention.num_kv_heads=2", "optimizer.lr=0.01")
    table = {"dim": 64, "attention": {"num_kv_heads": 2}}
    assert run.override(model=table, optimizer={"lr": 0.01}) == expected
    assert run.override(**table, optimizer={"lr": 0.01}) == expected


@pytest.mark.parametrize(
    ("table", "path", "name"),
    [
        ({"atention": {"num_kv_heads": 2}}, "atention", "attention"),
        ({"attention": {"num_kv_head": 2}}, "attention.num_kv_head", "num_kv_heads"),
        ({"attention": {"mask": {"kind": "windw"}}}, "attention.mask.kind", "window"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_nearest(table: dict, path: str, name: str) -> None:
    for spec in (aw.load_spec("modern"), aw.load_run_spec("modern")):
        with pytest.raises(aw.UserError) as error:
            spec.override(**table)
        (line,) = error.value.lines
        assert path in line
        assert f'Did you mean "{name}"?' in line
