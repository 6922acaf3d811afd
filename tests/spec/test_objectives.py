"""Objectives as data: how long a source may become."""

import pytest

from archwright.spec.objectives import Denoising


@pytest.mark.parametrize("length", [8, 40, 510])
def test_the_longest_source_holds_the_mode_of_its_denoiser(length: int) -> None:
    """One token more than without modes: what is kept, sentinels and the end are the same."""
    modes = Denoising()
    assert all(denoiser.mode for denoiser in modes.denoisers)
    plain = tuple(d.model_copy(update={"mode": ""}) for d in modes.denoisers)
    without = modes.model_copy(update={"denoisers": plain})
    assert modes.source_length(length) == without.source_length(length) + 1
