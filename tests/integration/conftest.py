"""Real Celery workers, a broker of their own and beat, as processes that pytest-celery's fixtures run.

The tests of one class share their broker and workers; a test outside a class has its own. Each test has its own
namespace all the same: messages name it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult
from pytest_celery import CeleryBackendCluster, CeleryBrokerCluster, CeleryTestSetup, CeleryWorkerCluster

from statecore import Settings, Statecore
from statecore.backends.embedded import ServerUrls
from statecore.backends.embedded_redis import EmbeddedRedis
from statecore.events import Event
from tests.integration.nodes import (
    PATIENCE_S,
    ProcessContainer,
    ProcessSetup,
    await_until,
    backend_cluster,
    beat_command,
    broker_cluster,
    celery_process,
    worker_cluster,
    worker_environment,
)

_brokers = itertools.count(1)
_fleets = itertools.count(1)


@pytest.fixture(scope="class")
def worker_names() -> Sequence[str]:
    """Override it for more workers than one."""
    return ("w1",)


@pytest.fixture(scope="class")
def worker_env() -> dict[str, str]:
    """Override it to set more of the workers' environment."""
    return {}


@pytest.fixture(scope="class")
def broker_server(home: Path) -> Iterator[EmbeddedRedis]:
    """A server of its own: flushing or killing the broker can't touch the store."""
    server = EmbeddedRedis(home / f"broker{next(_brokers)}", extra_config=["appendonly no"])
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="class")
def celery_broker_cluster(broker_server: EmbeddedRedis) -> CeleryBrokerCluster:
    return broker_cluster(broker_server)


@pytest.fixture(scope="class")
def celery_backend_cluster(broker_server: EmbeddedRedis) -> CeleryBackendCluster:
    return backend_cluster(broker_server)


@pytest.fixture(scope="class")
def fleet_settings(
    urls: ServerUrls, celery_broker_cluster: CeleryBrokerCluster, celery_backend_cluster: CeleryBackendCluster
) -> Settings:
    """What the workers and beat of this class run with."""
    return Settings.load(
        redis_url=urls.redis_url,
        database_url=urls.database_url,
        broker_url=celery_broker_cluster[0].config()["url"],
        result_url=celery_backend_cluster[0].config()["url"],
        namespace=f"fleet{next(_fleets)}",
    )


@pytest.fixture(scope="class")
def fleet_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its processes log."""
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="class")
def celery_worker_cluster(
    fleet_settings: Settings, worker_names: Sequence[str], worker_env: dict[str, str], fleet_folder: Path
) -> Iterator[CeleryWorkerCluster]:
    cluster = worker_cluster(worker_names, worker_environment(fleet_settings, worker_env), fleet_folder)
    yield cluster
    for node in cluster:
        node.teardown()


@pytest.fixture
def celery_setup_cls() -> type[CeleryTestSetup]:
    return ProcessSetup


@pytest.fixture
def start_beat(
    fleet_settings: Settings, worker_env: dict[str, str], tmp_path: Path
) -> Iterator[Callable[[str], ProcessContainer]]:
    """Starts a beat of that name; all of them end with the test."""
    with ExitStack() as started:

        def start(name: str) -> ProcessContainer:
            env = worker_environment(fleet_settings, worker_env)
            container = celery_process(name, beat_command(tmp_path, name), env, tmp_path)
            started.callback(container.teardown)
            container.ready()
            return container

        yield start


@pytest.fixture
def beat(start_beat: Callable[[str], ProcessContainer]) -> ProcessContainer:
    return start_beat("beat")


@pytest.fixture
def plane(fleet_settings: Settings, namespace: str) -> Iterator[Statecore]:
    """This test's namespace on the servers and the broker that its workers use."""
    settings = fleet_settings.model_copy(update={"namespace": namespace})
    with Statecore.connect(settings=settings) as plane:
        yield plane


class Producer:
    """A producer in any language: it knows task names, queues and JSON."""

    def __init__(self, setup: CeleryTestSetup, namespace: str) -> None:
        self._app = setup.app
        self._namespace = namespace

    def send(self, task: str, *, queue: str = "agents", message_id: str | None = None, **kwargs: Any) -> AsyncResult:
        """Send the message for this test's namespace, unless it names another."""
        kwargs = {"namespace": self._namespace, **kwargs}
        return self._app.send_task(task, kwargs=kwargs, queue=queue, task_id=message_id)

    def ask(self, task: str, **kwargs: Any) -> Any:
        """Send the message and wait for the answer."""
        return self.send(task, **kwargs).get(timeout=PATIENCE_S)

    def apply_event(self, agent_id: Any, event: Any, **fields: Any) -> Any:
        return self.ask("statecore.agents.apply_event", agent_id=agent_id, event=event, **fields)


@pytest.fixture
def producer(celery_setup: CeleryTestSetup, namespace: str) -> Producer:
    return Producer(celery_setup, namespace)


def audited(plane: Statecore, kind: str, subject: str | None = None) -> list[Event]:
    """The audit trail's events of that kind."""
    return list(plane.events.read(kinds=[kind], subject=subject))


def await_audited(plane: Statecore, kind: str, subject: str | None = None) -> Event:
    """The first such event, as soon as it is there."""
    found = await_until(lambda: audited(plane, kind, subject), PATIENCE_S, f"{kind} for {subject} is audited")
    return found[0]
