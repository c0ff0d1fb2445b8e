"""Before a worker takes its first message: settings, schema and the store's policy must be right."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from statecore.errors import SettingsError, StoreError

_log = logging.getLogger(__name__)


class Preflight(bootsteps.Step):  # type: ignore[misc]
    """Refuses to start on a mistake that no retry mends. A server that is only down is waited for by the tasks."""

    def create(self, parent: Any) -> None:
        try:
            parent.app.statecore_runtime.statecore().agents.list(limit=1)
        except SettingsError as error:
            _log.critical("%s", error)
            raise SystemExit(2) from error
        except StoreError as error:
            _log.warning("the store is not ready yet, tasks will be retried: %s", error)
