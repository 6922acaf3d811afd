"""The numbers of a run and the sentence made of them."""

import math
from typing import Any

import pytest

from archwright.reporting.history import read_history
from archwright.reporting.result import as_nats_per_token, notice, result_of, verdict
from tests.reporting.conftest import (
    ENVIRONMENT,
    Make,
    baseline_lines,
    evaluation,
    event_line,
    metric_lines,
)
