"""Families with special choices, which `archwright.hf.families` finds."""

import archwright.hf.families  # noqa: F401  # which imports these modules, and none of them halfway
