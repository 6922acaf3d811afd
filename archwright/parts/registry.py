"""One registry for each axis: which part computes which choice."""

import inspect
from collections.abc import Mapping
from typing import Any

from archwright.spec.choice import Choice
from archwright.spec.errors import UserError


class Registry(dict[Any, Any]):
    """The parts of an axis by the class of their spec; those from outside the package join with `add`.

    A part is a class or a function, which is called with a spec and gives what computes it. That of a class without a
    kind serves all choices below it.

    Args:
        base: the axis, or what some of its choices share, where these have a registry of their own.
        arguments: what a part is called with, for the reader.
        gives: the type of what it gives.
    """

    def __init__(
        self,
        base: type[Choice],
        arguments: str,
        gives: Any,
        parts: Mapping[Any, Any],
    ) -> None:
        super().__init__(parts)
        self.base, self.arguments, self.gives = base, arguments, gives

    def part(self, choice: Choice) -> Any:
        """Return the part of a choice.

        Raises:
            UserError: it has none.
        """
        cls = type(choice)
        shared = (base for base in cls.__mro__ if issubclass(base, Choice) and base.is_axis())
        found = cls if cls in self else next((base for base in shared if base in self), None)
        if found is None:
            raise UserError(
                f'{cls.axis}.kind = "{choice.kind}": {cls.__name__} has no part; '
                f"give it one with archwright.register({cls.__name__}, ...)"
            )
        return self[found]

    def make(self, choice: Choice, *given: Any, **named: Any) -> Any:
        """Call the part of a choice, and return what it gives.

        Raises:
            UserError: it has none, takes other arguments, or gives something else.
        """
        part = self.part(choice)
        try:
            made = part(choice, *given, **named)
        except TypeError as error:
            if why := _misfit(part, choice, *given, **named):
                raise self._refusal(choice, part, why) from error
            raise
        if not isinstance(made, self.gives):
            raise self._refusal(choice, part, f"gave a {type(made).__name__}")
        return made

    def add(self, choice: type[Choice], part: Any) -> None:
        """Let a choice join.

        Raises:
            ValueError: it has another part already, or lacks something that choices of its axis declare.
        """
        if self.get(choice, part) is not part:
            raise ValueError(f"{choice.__name__}: has its part {self[choice].__name__} already")
        if missing := sorted(getattr(choice, "__abstractmethods__", ())):
            raise ValueError(
                f"{choice.__name__}: lacks {', '.join(missing)}, which each choice below its base has"
            )
        known = {name for base in choice.__mro__ for name in vars(base)}
        for name in sorted(choice.__class_vars__):
            if name not in known:
                raise ValueError(
                    f"{choice.__name__}: lacks {name}, which each {choice.axis} declares: "
                    f"{name}: ClassVar[...] = ..."
                )
        self[choice] = part

    def _refusal(self, choice: Choice, part: Any, why: str) -> UserError:
        return UserError(
            f'{choice.axis}.kind = "{choice.kind}": {_name(part)} {why}; expected a part that is called with '
            f"{self.arguments} and gives a {_name(self.gives)}"
        )


def _misfit(part: Any, *given: Any, **named: Any) -> str:
    """Return why a part cannot be made of these arguments; nothing where it can, or where nobody knows."""
    if missing := sorted(getattr(part, "__abstractmethods__", ())):
        return f"has no {', '.join(missing)}, which all parts of its kind have"
    try:
        inspect.signature(part).bind(*given, **named)
    except TypeError as error:
        return f"was called with other arguments than it takes: {error}"
    except ValueError:  # some builtins have no signature
        pass
    return ""


def _name(part: Any) -> str:
    return str(getattr(part, "__name__", part))
