"""`statecore version`: what runs here, for a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

from rich.console import Console

from statecore.backends.database import newest_revision

_SHOWN = ("statecore", "celery", "kombu", "redis", "sqlalchemy", "psycopg")


def version() -> None:
    """Show the versions of Statecore, of what it stands on, and of the schema that it needs."""
    console = Console(highlight=False, soft_wrap=True)
    for name in _SHOWN:
        console.print(f"{name:<12}{_version_of(name)}")
    console.print(f"{'python':<12}{platform.python_version()}")
    console.print(f"{'schema':<12}{newest_revision()}")


def _version_of(name: str) -> str:
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return f"not installed; runs from {Path(__file__).parents[2]}" if name == "statecore" else "not installed"
