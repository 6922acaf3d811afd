"""The page of architectures is what the presets make."""

import pytest

from docs._make import architectures


@pytest.mark.slow
def test_the_page_is_the_one_that_the_presets_make() -> None:
    assert architectures.markdown() == architectures.FILE.read_text("utf-8"), "run `make docs`"
