"""The ground of all tests: real servers, started once, and a namespace of its own for each test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from statecore import Settings, Statecore
from statecore.backends.database import Database
from statecore.backends.embedded import EmbeddedServers, ServerUrls
from statecore.backends.epoch import EpochKeeper
from statecore.backends.postgres_ground import PostgresEpochLedger
from statecore.backends.redis_namespace import RedisNamespace
from statecore.backends.redis_server import RedisServer
from statecore.clock import Clock

pytest.register_assert_rewrite("statecore.testing.agents", "statecore.testing.claims")

# The same examples in every run, so that a change is judged by what it changed; to look for new ones:
# pytest tests/property --hypothesis-profile=explore
hypothesis.settings.register_profile("steady", max_examples=80, derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=1000)
hypothesis.settings.load_profile("steady")

# A disk that many servers share can hold up a Redis that writes its append-only file for longer than the default.
PATIENT_S = 20.0

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A short folder: unix sockets have short names."""
    folder = Path(tempfile.mkdtemp(prefix="sct-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def urls(home: Path) -> Iterator[ServerUrls]:
    """A Redis and a migrated Postgres that run for the whole session."""
    with EmbeddedServers(home / "servers") as urls:
        database = Database(urls.database_url)
        database.migrate()
        database.close()
        yield urls


@pytest.fixture(scope="session")
def database(urls: ServerUrls) -> Iterator[Database]:
    database = Database(urls.database_url)
    yield database
    database.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A namespace that no other test uses."""
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)
    return f"t{next(_numbers)}-{name}"[:100].rstrip("-")


@pytest.fixture
def settings(urls: ServerUrls, namespace: str) -> Settings:
    return Settings.load(
        redis_url=urls.redis_url,
        database_url=urls.database_url,
        broker_url=urls.broker_url,
        namespace=namespace,
        redis_timeout_s=PATIENT_S,
    )


@pytest.fixture
def sc(settings: Settings) -> Iterator[Statecore]:
    with Statecore.connect(settings=settings) as sc:
        yield sc


MakeSpace = Callable[..., RedisNamespace]


@pytest.fixture
def make_space(database: Database) -> Iterator[MakeSpace]:
    """Makes a namespace on a Redis server, with time injected if a clock is given."""
    servers: list[RedisServer] = []

    def make(url: str, namespace: str, clock: Clock | None = None) -> RedisNamespace:
        server = RedisServer(url, PATIENT_S)
        servers.append(server)
        epochs = EpochKeeper(PostgresEpochLedger(database))
        return RedisNamespace(server, epochs, namespace, actor="test", stream_limit=100_000, clock=clock)

    yield make
    for server in servers:
        server.close()
