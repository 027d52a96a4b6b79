"""Settings of agent files, which take no flags: numbers from the environment."""

import os


def whole_number(name: str, default: int, most: int | None = None) -> int:
    """The variable `name`, from 1 to `most`. Raises ValueError, which names the variable and the fix."""
    text = os.environ.get(name, str(default))
    if text.isdecimal() and 1 <= int(text) <= (most or int(text)):
        return int(text)
    wanted = "a whole number above 0" if most is None else f"a whole number from 1 to {most}"
    raise ValueError(f"{name}={text}: set it to {wanted}, or leave it out for {default}")
