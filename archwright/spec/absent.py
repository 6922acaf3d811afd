"""Systems that do not come with the package though people ask for them: what is missing, what is nearest."""

import re
import tomllib

from archwright import presets
from archwright.spec.errors import UserError

FILE = presets.FOLDER / "absent" / "systems.toml"


def refuse_absent(name: str) -> None:
    """Raise a UserError that says what of a well-known system is missing here, if `name` is one, or a size of one."""
    asked = name.lower()
    for system, words in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
        letters = re.escape(system).replace(r"\-", "[-_. ]?")
        if re.match(rf"{letters}(?![a-z])", asked):
            raise UserError(f'"{name}": {words["what"]}; {words["nearest"]}')
