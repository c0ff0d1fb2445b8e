"""The command `statecore`: one module per subcommand, wired here."""

from __future__ import annotations

from typing import Annotated

import typer

from statecore.cli.config import config
from statecore.cli.demo import demo
from statecore.cli.exits import StatecoreGroup
from statecore.cli.migrate import migrate
from statecore.cli.version import version

app = typer.Typer(
    cls=StatecoreGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Exit codes: 0 fine; 1 the verdict does not hold; 2 wrong usage or settings, or a server fails; 130 Ctrl-C.",
)
app.command()(demo)
app.command()(config)
app.command()(migrate)
app.command()(version)

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]


@app.callback()
def statecore(debug: Debug = False) -> None:
    """A control plane for fleets of agents on Celery, Redis and Postgres.

    Begin with `statecore demo`: it needs no server and leaves nothing behind.

    Then set STATECORE_REDIS_URL, STATECORE_DATABASE_URL and STATECORE_BROKER_URL to your servers:

    ```
    statecore config
    statecore migrate
    celery -A workers worker
    celery -A workers beat
    ```
    """
