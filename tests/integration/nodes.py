"""pytest-celery's nodes over local processes: what it does with Docker containers, done with `subprocess`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu import pools
from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestContainer,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
)

from statecore import Settings
from statecore.backends.embedded_redis import EmbeddedRedis

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
_POLL_S = 0.02
_LOG_SHOWN = 4000


def await_until(condition: Callable[[], Any], timeout: float, message: str | Callable[[], str]) -> Any:
    """The first true value of the condition; fails with the message if none comes in time."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            text = message if isinstance(message, str) else message()
            raise AssertionError(f"not within {timeout:g} s: {text}")
        time.sleep(_POLL_S)
    return value


def worker_environment(settings: Settings, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that uses these servers and nothing else of ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("STATECORE_", "CELERY_"))}
    named = {
        f"STATECORE_{field.upper()}": str(getattr(settings, field))
        for field in ("redis_url", "database_url", "broker_url", "result_url", "namespace")
        if getattr(settings, field) is not None
    }
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **named, **extra}


class ProcessContainer(CeleryTestContainer):
    """A Celery process in a session of its own; its output is its log."""

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, ready_prompt: str, cwd: Path = ROOT
    ) -> None:
        # No super().__init__: it would want a Docker container.
        self._name, self._argv, self._env, self._cwd = name, list(argv), dict(env), cwd
        self._log, self._ready_prompt = log, ready_prompt
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        log.touch()
        self.start()

    @property
    def name(self) -> str:
        return self._name

    @property
    def id(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> str:
        return "running" if self._process is not None and self._process.poll() is None else "exited"

    @property
    def ready_prompt(self) -> str:
        return self._ready_prompt

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {}

    @classmethod
    def version(cls) -> str:
        return "local"

    def worker_name(self) -> str:  # type: ignore[override]
        return self._name

    def reload(self) -> None:
        """Nothing to fetch: the process is looked at each time."""

    def logs(self) -> str:
        """Everything it ever wrote, over all its starts."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        self._log_start = self._log.stat().st_size
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ready(self) -> bool:
        """Wait until this start of the process says that it is ready."""

        def said_so() -> bool:
            if self.status == "exited":
                raise AssertionError(f"{self.name} ended before it was ready:\n{self.logs()[-_LOG_SHOWN:]}")
            return self._ready_prompt in self.logs()[self._log_start :]

        await_until(said_so, PATIENCE_S, lambda: f"{self.name} is ready:\n{self.logs()[-_LOG_SHOWN:]}")
        return True

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """SIGKILL takes the whole process group, as a lost host would; other signals go to the main process."""
        number = _number(signal)
        if number == _number("SIGKILL"):
            self._kill_group()
        elif self._process is not None:
            self._process.send_signal(number)

    def restart(self, timeout: float = PATIENCE_S) -> None:
        if self.status == "running":
            self.kill("SIGTERM")
            assert self._process is not None
            self._process.wait(timeout)
        self._kill_group()
        self.start()
        self.ready()

    def teardown(self) -> None:
        """No process of the group is left; may be called twice."""
        self._kill_group()

    def _kill_group(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._process = None


def celery_process(
    name: str, command: Sequence[str], env: Mapping[str, str], folder: Path, *, app: str = "workers", cwd: Path = ROOT
) -> ProcessContainer:
    """`python -m celery -A <app> <command>` as a node's container."""
    prompt = " ready." if command[0] == "worker" else "beat: Starting..."
    argv = [sys.executable, "-m", "celery", "-A", app, *command]
    return ProcessContainer(name, argv, env, folder / f"{name}.log", prompt, cwd)


def worker_command(name: str) -> list[str]:
    """Two children, so that one worker already runs things side by side."""
    return ["worker", "-c", "2", "-n", f"{name}@%h", "-l", "INFO"]


def beat_command(folder: Path, name: str) -> list[str]:
    return ["beat", "-s", str(folder / f"{name}.schedule"), "--pidfile=", "-l", "INFO"]


class RedisContainer(CeleryTestContainer):
    """One database of a Valkey server as broker or result backend."""

    def __init__(self, server: EmbeddedRedis, database: int) -> None:
        self._server = server
        self._database = database

    @property
    def name(self) -> str:
        return f"valkey-{self._database}"

    @property
    def id(self) -> str:
        return self.name

    @property
    def status(self) -> str:
        return "running" if self._server.process_id() is not None else "exited"

    @property
    def url(self) -> str:
        return f"redis+socket://{self._server.socket}?virtual_host={self._database}"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self._server.socket), db=self._database)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {"url": self.url, "host_url": self.url}

    def reload(self) -> None:
        """Nothing to fetch."""

    def ready(self) -> bool:
        self._server.start()
        return True

    def logs(self) -> str:
        return self._server.log.read_text()

    def kill(self, signal: str | int = "SIGKILL") -> None:
        if _number(signal) == _number("SIGKILL"):
            self._server.kill()
        else:
            self._server.stop()

    def restart(self, timeout: float = PATIENCE_S) -> None:  # noqa: ARG002
        self._server.stop()
        self._server.start()

    def flush(self) -> None:
        """Every message, and what kombu knows of queues, is gone."""
        with self.client as client:
            client.flushdb()

    def teardown(self) -> None:
        self._server.stop()


class ProcessSetup(CeleryTestSetup):
    """pytest-celery's setup with a producer that is a stranger: a plain app that knows task names and queues only."""

    @classmethod
    def name(cls) -> str:
        return "a-foreign-producer"

    def teardown(self) -> None:
        close_app(self.app)


def close_app(app: Celery) -> None:
    """Close every connection that the app holds to broker and results."""
    consumer = getattr(app.backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
    client = getattr(app.backend, "client", None)
    if client is not None:
        client.close()
        client.connection_pool.disconnect()
    app.close()
    # kombu shares its pools between all apps of a process, and a closed one stays closed.
    pools.reset()


def broker_cluster(server: EmbeddedRedis) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(CeleryTestBroker(RedisContainer(server, 1)))


def backend_cluster(server: EmbeddedRedis) -> CeleryBackendCluster:
    return CeleryBackendCluster(CeleryTestBackend(RedisContainer(server, 2)))


def worker_cluster(names: Sequence[str], env: Mapping[str, str], folder: Path) -> CeleryWorkerCluster:
    """Started side by side, and all ready."""
    containers = [celery_process(name, worker_command(name), env, folder) for name in names]
    try:
        for container in containers:
            container.ready()
    except BaseException:
        for container in containers:
            container.teardown()
        raise
    return CeleryWorkerCluster(*(CeleryTestWorker(container, app=None) for container in containers))


def _number(name: str | int) -> int:
    return signal.Signals[name].value if isinstance(name, str) else int(name)
