"""Well-known systems outside the package: missing features and nearest alternatives."""

import re
import tomllib

from archwright import presets
from archwright.spec.errors import UserError

FILE = presets.FOLDER / "absent" / "systems.toml"


def refuse_absent(name: str, at: str = "") -> None:
    """Raise a UserError with the missing features if `name` is such a system, or a size of one.

    Args:
        at: Place of the name, in front of the message.
    """
    asked = name.lower()
    for system, words in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        letters = re.escape(system).replace(r"\-", "[-_. ]?")
        if re.match(rf"{letters}(?![a-z])", asked):
            raise UserError(f'{at}"{name}": {words["what"]}; {words["nearest"]}')
