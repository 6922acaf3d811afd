import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archwright.checkpoint.tree import join, split
from archwright.spec.errors import UserError

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
dtypes = st.sampled_from([torch.bfloat16, torch.float32])
tensors = st.builds(torch.tensor, st.lists(st.integers(0, 9), max_size=3))
arrays = st.builds(np.array, st.lists(st.floats(-1, 1), max_size=3))
keys = st.text() | st.integers() | st.none() | st.tuples(st.integers(), st.text())
names = st.sampled_from(["a", "a/b", "b", "$tensor", "$tuple"])
trees = st.recursive(
    scalars | dtypes | tensors | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(names, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.equal(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.slow
@given(trees)
def test_round_trip_through_strict_json(tree: object) -> None:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(split(tree, "top", tensors), allow_nan=False)
    assert same(tree, join(json.loads(text), tensors))


def test_keys_that_print_alike_are_kept_apart() -> None:
    tree = {1: torch.ones(1), "1": torch.zeros(1)}
    tensors: dict[str, torch.Tensor] = {}
    assert same(tree, join(split(tree, "t", tensors), tensors))
    assert len(tensors) == 2


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j, np.array(["a"]), len])
def test_anything_else_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(UserError, match=r"^top/a/1: a \w+ cannot be saved"):
        split({"a": [0, value]}, "top", {})
