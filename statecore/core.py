"""The composition root: everything a program uses of Statecore hangs on one object."""

from __future__ import annotations

import importlib
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from statecore.agents.redis_store import RedisAgentStore, RedisHeartbeatStore, RedisInboxStore
from statecore.agents.service import AgentService, assign_ring
from statecore.agents.transitions import AGENT_LIFECYCLE, Lifecycle
from statecore.backends.database import Database
from statecore.backends.embedded import EmbeddedServers, default_home
from statecore.backends.epoch import EpochKeeper
from statecore.backends.kombu_doorbell import Broker, KombuDoorbell
from statecore.backends.postgres_ground import PostgresEpochLedger, PostgresRegistrations, namespaces
from statecore.backends.redis_events import RedisEventLog
from statecore.backends.redis_namespace import RedisNamespace
from statecore.backends.redis_server import RedisServer
from statecore.claims.redis_store import RedisClaimStore
from statecore.claims.service import ClaimService
from statecore.errors import SettingsError
from statecore.ids import check_id
from statecore.runs.postgres_store import PostgresRunStore
from statecore.runs.service import RunService
from statecore.settings import Settings
from statecore.supervisor.backoff import Backoff
from statecore.supervisor.redis_store import RedisAssignStore
from statecore.supervisor.service import Supervisor


class Servers:
    """The connections that all namespaces of a process share."""

    def __init__(self, settings: Settings) -> None:
        self.redis = RedisServer(settings.require("redis_url"), settings.redis_timeout_s)
        self.database = Database(settings.require("database_url"))
        self.broker = Broker(settings.require("broker_url"))
        self.epochs = EpochKeeper(PostgresEpochLedger(self.database))
        self.embedded: EmbeddedServers | None = None

    def close(self) -> None:
        """Close all connections, and let go of embedded servers if this process started or shares them."""
        self.redis.close()
        self.database.close()
        self.broker.close()
        if self.embedded is not None:
            self.embedded.release()


class Statecore:
    """One namespace of the control plane. Make it with `connect` or `embedded`; close it, or use it in a `with`."""

    def __init__(self, settings: Settings, servers: Servers, *, actor: str, lifecycle: Lifecycle) -> None:
        self.settings = settings
        self.namespace = settings.namespace
        self._servers = servers
        self._actor = actor
        self._lifecycle = lifecycle
        space = RedisNamespace(
            servers.redis,
            servers.epochs,
            settings.namespace,
            actor=actor,
            stream_limit=settings.event_stream_limit,
        )
        self.doorbell = KombuDoorbell(servers.broker, space)
        self.events = RedisEventLog(space)
        self.agents = AgentService(
            RedisAgentStore(space, lifecycle),
            RedisInboxStore(space, lifecycle, limit=settings.inbox_limit, early_wait_s=settings.early_event_wait_s),
            RedisHeartbeatStore(space, lifecycle),
            PostgresRegistrations(servers.database, settings.namespace),
            self.doorbell,
            settings,
            lifecycle,
        )
        runs = PostgresRunStore(servers.database, settings.namespace, actor=actor)
        self.runs = RunService(runs, self.doorbell, settings)
        self.claims = ClaimService(RedisClaimStore(space, limit=settings.queue_limit), self._ring_supervisor)
        self.supervisor = Supervisor(
            RedisAssignStore(space, lifecycle), Backoff(settings.retry_base_s, settings.retry_cap_s)
        )

    @classmethod
    def connect(
        cls,
        redis_url: str | None = None,
        database_url: str | None = None,
        broker_url: str | None = None,
        namespace: str | None = None,
        *,
        actor: str | None = None,
        lifecycle: Lifecycle | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """Use your own servers, named here or in the environment; refuses an outdated schema."""
        if settings is None:
            settings = Settings.load(
                redis_url=redis_url, database_url=database_url, broker_url=broker_url, namespace=namespace
            )
        servers = Servers(settings)
        try:
            servers.database.check_schema()
        except BaseException:
            servers.close()
            raise
        return cls(settings, servers, actor=actor or _this_process(), lifecycle=lifecycle or load_lifecycle(settings))

    @classmethod
    def embedded(cls, path: str | Path | None = None, namespace: str | None = None, **overrides: Any) -> Self:
        """Start, or share, the embedded servers in that folder (default: STATECORE_HOME) and use them."""
        embedded = EmbeddedServers(Path(path) if path is not None else default_home())
        urls = embedded.start()
        try:
            settings = Settings.load(
                redis_url=urls.redis_url,
                database_url=urls.database_url,
                broker_url=urls.broker_url,
                namespace=namespace,
                **overrides,
            )
            servers = Servers(settings)
            servers.database.migrate()
        except BaseException:
            embedded.release()
            raise
        servers.embedded = embedded
        return cls(settings, servers, actor=_this_process(), lifecycle=load_lifecycle(settings))

    def in_namespace(self, namespace: str) -> Statecore:
        """The same servers, another namespace; closing it is the owner's matter."""
        if namespace == self.namespace:
            return self
        settings = self.settings.model_copy(update={"namespace": check_id("namespace", namespace)})
        return Statecore(settings, self._servers, actor=self._actor, lifecycle=self._lifecycle)

    def namespaces(self) -> list[str]:
        """Every namespace that was ever used on these servers."""
        return namespaces(self._servers.database)

    def close(self) -> None:
        """Close all connections."""
        self._servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ring_supervisor(self) -> None:
        self.doorbell.ring_once("assign", assign_ring(self.namespace))


def effective_settings() -> Settings:
    """The environment's settings; if it names no server, those of embedded servers that run now."""
    settings = Settings.load()
    if settings.redis_url or settings.database_url or settings.broker_url:
        return settings
    urls = EmbeddedServers(settings.home or default_home()).running()
    if urls is None:
        return settings
    return Settings.load(redis_url=urls.redis_url, database_url=urls.database_url, broker_url=urls.broker_url)


def load_lifecycle(settings: Settings) -> Lifecycle:
    """The lifecycle that the settings name, or the built-in one."""
    if settings.lifecycle is None:
        return AGENT_LIFECYCLE
    module, _, name = settings.lifecycle.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"STATECORE_LIFECYCLE={settings.lifecycle!r} can't be imported: {error}") from error
    if not isinstance(found, Lifecycle):
        raise SettingsError(f"STATECORE_LIFECYCLE={settings.lifecycle!r} is no Lifecycle")
    return found


def _this_process() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"
