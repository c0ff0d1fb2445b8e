"""`statecore config`: which settings hold here, and where each comes from."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from statecore.core import effective_settings
from statecore.settings import Settings

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object with `settings` and `sources`.")]


def config(as_json: AsJson = False) -> None:
    """Show the effective settings, passwords hidden, and where each comes from.

    Every setting is an environment variable: STATECORE_ and the name in capitals. If none of the three server URLs is
    set, those of running embedded servers are shown.

    ```
    STATECORE_NAMESPACE=fleet-1 statecore config
    statecore config --json | jq .settings.redis_url
    ```
    """
    settings = effective_settings()
    shown, sources = settings.shown(), _sources(settings)
    console = Console()
    if as_json:
        console.print_json(data={"settings": shown, "sources": sources})
    else:
        console.print(_table(shown, sources))


def _sources(settings: Settings) -> dict[str, str]:
    """environment, default, or the embedded servers that run now; what they say of URLs is in no variable."""
    set_here = {name.upper() for name in os.environ}
    sources = {}
    for name, field in Settings.model_fields.items():
        if f"STATECORE_{name.upper()}" in set_here:
            sources[name] = "environment"
        else:
            sources[name] = "default" if getattr(settings, name) == field.default else "embedded servers"
    return sources


def _table(shown: dict[str, Any], sources: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("setting", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", no_wrap=True)
    for name, value in shown.items():
        table.add_row(f"STATECORE_{name.upper()}", "-" if value is None else str(value), sources[name])
    return table
