"""How a command ends: our errors as one sentence instead of a traceback."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from statecore.cli.exit_codes import ExitCode
from statecore.errors import StatecoreError


class StatecoreGroup(TyperGroup):
    """The commands, with Statecore's own errors shown as text; `--debug` shows where they came from."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StatecoreError as error:
            console = Console(stderr=True)
            if ctx.params.get("debug"):
                console.print_exception(width=None)
            console.print(f"statecore: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(ExitCode.ERROR) from error
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
