"""The one record of every check at launch: what is wrong with which flag, and what to do about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """`flag` as typed on the command line (with its dashes) or the name of a part of the machine, e.g. `Ray`."""

    flag: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.flag}: {self.what}. Fix: {self.fix}."


class LaunchError(Exception):
    """Stops a run before any actor starts; carries every problem found."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def cause(error: BaseException) -> str:
    """The innermost reason in one line or a few: Ray wraps an actor's exception in one of its own at every hop."""
    inner = getattr(error, "cause", None) or error.__cause__
    if isinstance(inner, BaseException):
        return cause(inner)
    if error.args and (said := str(error.args[0]).strip()):
        return said
    # Ray's word on a dead actor has no arguments, and a line for each of class, id, pid, address and reason.
    return " ".join(str(error).split()) or type(error).__name__
