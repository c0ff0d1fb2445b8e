"""Lua scripts as files: one per operation, with shared parts pulled in by `--@include`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_INCLUDE = re.compile(r"^--@include ([\w./]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script's whole text and the digest under which the server caches it."""

    name: str
    body: str
    sha: str


@cache
def load_script(path: str) -> Script:
    """The script at `feature/name` (that is `statecore/feature/lua/name.lua`) with its includes."""
    body = _text(path)
    return Script(path, body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest())


def _text(path: str) -> str:
    feature, _, name = path.partition("/")
    text = resources.files("statecore").joinpath(feature, "lua", f"{name}.lua").read_text("utf-8")
    return _INCLUDE.sub(lambda match: _text(match[1]), text)
