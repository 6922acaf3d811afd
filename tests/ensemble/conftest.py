"""The runs of `tests/training`, for rooms that training is made of."""

from tests.training.conftest import cache as cache
from tests.training.conftest import longer as longer
from tests.training.conftest import material as material
from tests.training.conftest import run as run
from tests.training.conftest import session as session
from tests.training.conftest import text as text
