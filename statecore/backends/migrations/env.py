"""Alembic's entry: runs on the connection that `Database.migrate` hands over."""

from __future__ import annotations

from alembic import context

import statecore.runs.tables  # noqa: F401  (registers its tables)
from statecore.backends.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
context.run_migrations()
