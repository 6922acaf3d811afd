"""Registries of parts: the implementation of each choice of an axis."""

import inspect
from collections.abc import Mapping
from typing import Any

from archwright.spec.choice import Choice
from archwright.spec.errors import UserError
from archwright.spec.installed import load_classic


class Registry(dict[Any, Any]):
    """Parts of an axis by the class of their spec; `add` registers more.

    A part is a class or a function that takes a spec and returns its implementation. The part of a class without a kind
    applies to all its subclasses.

    Args:
        base: base class of the registry's choices: the axis, or a subclass with a separate registry.
        arguments: arguments of a part, for error messages.
        gives: type of the implementation.
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
            UserError: the choice has no part.
        """
        cls = type(choice)
        if (found := self.of(cls)) is None:
            raise UserError(
                f'{cls.axis}.kind = "{choice.kind}": {cls.__name__} has no part; '
                f"give it one with archwright.register({cls.__name__}, ...)"
            )
        return found

    def of(self, choice: type[Choice]) -> Any:
        """Return the part of a class of choices; None if it has none."""
        shared = (base for base in choice.__mro__ if issubclass(base, Choice) and base.is_axis())
        classes = [choice, *shared]
        if not any(cls in self for cls in classes):
            load_classic("parts")
        return next((self[cls] for cls in classes if cls in self), None)

    def make(self, choice: Choice, *args: Any, **kwargs: Any) -> Any:
        """Call the part of a choice.

        Raises:
            UserError: the choice has no part, or the part has other arguments or returns another type.
        """
        part = self.part(choice)
        try:
            made = part(choice, *args, **kwargs)
        except TypeError as error:
            # An error inside the part, and not of its signature, passes through.
            if why := _misfit(part, choice, *args, **kwargs):
                raise self._refusal(choice, part, why) from error
            raise
        if not isinstance(made, self.gives):
            raise self._refusal(choice, part, f"gave a {type(made).__name__}")
        return made

    def add(self, choice: type[Choice], part: Any) -> None:
        """Register the part of a choice.

        Raises:
            ValueError: the choice has another part, or lacks an attribute that its axis requires.
        """
        if self.get(choice, part) is not part:
            raise ValueError(f"{choice.__name__}: has its part {self[choice].__name__} already")
        if missing := sorted(getattr(choice, "__abstractmethods__", ())):
            raise ValueError(
                f"{choice.__name__}: lacks {', '.join(missing)}, which each choice below its base has"
            )
        inherited = {name for base in choice.__mro__ for name in vars(base)}
        for name in sorted(choice.__class_vars__):
            if name not in inherited:
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


def _misfit(part: Any, *args: Any, **kwargs: Any) -> str:
    """Return the reason why a part does not accept these arguments; "" if there is none."""
    if missing := sorted(getattr(part, "__abstractmethods__", ())):
        return f"has no {', '.join(missing)}, which all parts of its kind have"
    try:
        inspect.signature(part).bind(*args, **kwargs)
    except TypeError as error:
        return f"was called with other arguments than it takes: {error}"
    except ValueError:  # some builtins have no signature
        pass
    return ""


def _name(part: Any) -> str:
    return str(getattr(part, "__name__", part))
