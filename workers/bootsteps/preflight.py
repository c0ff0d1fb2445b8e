"""Before a worker takes its first message: settings, schema and the store's policy must be right."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from kombu import Connection

from statecore.errors import SettingsError, StoreError
from statecore.settings import hide_password

_log = logging.getLogger(__name__)


def check_broker(listens_to: str, rings: str) -> None:
    """SettingsError if the worker would wait at another broker than the one where doorbells ring."""
    if _place(listens_to) != _place(rings):
        raise SettingsError(
            f"this worker listens to {hide_password(listens_to)} but STATECORE_BROKER_URL is {hide_password(rings)}; "
            "name the same broker in both (CELERY_BROKER_URL goes before everything else that Celery reads)"
        )


def _place(url: str) -> tuple[Any, ...]:
    connection = Connection(url)
    return connection.transport_cls, connection.hostname, connection.port, connection.virtual_host or "/"


class Preflight(bootsteps.Step):  # type: ignore[misc]
    """Refuses to start on a mistake that no retry mends. A server that is only down is waited for by the tasks."""

    def create(self, parent: Any) -> None:
        runtime = parent.app.statecore_runtime
        try:
            check_broker(parent.app.conf.broker_url, runtime.settings.require("broker_url"))
            runtime.statecore().agents.list(limit=1)
        except SettingsError as error:
            _log.critical("%s", error)
            raise SystemExit(2) from error
        except StoreError as error:
            _log.warning("the store is not ready yet, tasks will be retried: %s", error)
