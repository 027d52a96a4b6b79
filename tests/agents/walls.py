"""Skips tests that need a sandbox where there can be none."""

import asyncio

import pytest

from openrlhf.agents.sandbox import Sandbox, SandboxUnavailable


def _reason() -> str:
    try:
        asyncio.run(Sandbox().ready())
    except SandboxUnavailable as error:
        return str(error)
    return ""


_why = _reason()
needs_walls = pytest.mark.skipif(bool(_why), reason=_why or "there is a sandbox")
