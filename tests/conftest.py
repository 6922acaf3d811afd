"""What all tests share: shapes on public signatures are checked, and every run is the same."""

from collections.abc import Iterator

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

ROOMS = ("parts", "model", "losses", "optim", "generation")
jaxtyping.install_import_hook([f"archwright.{room}" for room in ROOMS], "beartype.beartype")

import torch  # noqa: E402
import torch.nn.attention.flex_attention  # noqa: E402

# On a CPU, FlexAttention would trace every call with a compiler only to run it as it is.
torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # type: ignore[attr-defined]
torch.set_num_threads(1)
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


@pytest.fixture
def visitors() -> Iterator[None]:
    """Let a test add choices and parts; they leave with it."""
    from archwright.parts import TABLES
    from archwright.spec.choice import Choice

    axes = Choice.__subclasses__()
    tables = [axis.kinds for axis in axes] + [t for tables in TABLES.values() for t in tables]
    before = [dict(table) for table in tables]
    yield
    for table, contents in zip(tables, before, strict=True):
        table.clear()
        table.update(contents)
