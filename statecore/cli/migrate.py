"""`statecore migrate`: the schema that this version needs, in your database."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console

from statecore.backends.database import Database, newest_revision
from statecore.core import effective_settings

Check = Annotated[bool, typer.Option("--check", help="Change nothing; exit with 2 if the schema is outdated.")]


def migrate(check: Check = False) -> None:
    """Bring the database schema to the revision that this version needs.

    It works on STATECORE_DATABASE_URL, or on the embedded servers if they run and no URL is set. It is safe to run at
    every deployment and from several hosts at once: they wait for each other, and the second finds nothing to do.

    ```
    STATECORE_DATABASE_URL=postgresql://me:secret@db/control statecore migrate
    statecore migrate --check && celery -A workers worker
    ```
    """
    console = Console(highlight=False, soft_wrap=True)
    with closing(Database(effective_settings().require("database_url"))) as database:
        if check:
            database.check_schema()
            console.print(f"The schema is up to date ({newest_revision()}).")
            return
        found = database.revision()
        reached = database.migrate()
    if found == reached:
        console.print(f"The schema was up to date already ({reached}).")
    else:
        console.print(f"The schema went from {found or 'nothing'} to {reached}.")
