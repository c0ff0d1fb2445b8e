"""A worker that can't work says so at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from statecore.backends.embedded import ServerUrls
from statecore.backends.embedded_redis import EmbeddedRedis
from workers.bootsteps.preflight import check_broker


def start(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "celery", "-A", "workers", "worker", "-c", "1", "-l", "INFO"]
    names = {f"STATECORE_{name.upper()}": value for name, value in environment.items()}
    return subprocess.run(command, env=os.environ | names, capture_output=True, text=True, timeout=60, check=False)


def test_a_worker_refuses_a_schema_that_is_not_migrated(urls: ServerUrls) -> None:
    ended = start(
        redis_url=urls.redis_url,
        broker_url=urls.broker_url,
        database_url=urls.database_url.replace("/postgres?", "/template1?"),
    )
    assert ended.returncode == 2
    assert "run: statecore migrate" in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr + ended.stdout


def test_a_worker_refuses_a_store_that_may_drop_keys(urls: ServerUrls) -> None:
    with tempfile.TemporaryDirectory(prefix="sct-") as folder:
        server = EmbeddedRedis(Path(folder), extra_config=["maxmemory-policy allkeys-lru"])
        server.start()
        try:
            ended = start(redis_url=server.url, broker_url=urls.broker_url, database_url=urls.database_url)
        finally:
            server.stop()
    assert ended.returncode == 2
    assert "noeviction" in ended.stderr + ended.stdout


def test_a_worker_refuses_to_wait_where_no_doorbell_rings(urls: ServerUrls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", urls.broker_url.replace("virtual_host=1", "virtual_host=7"))
    ended = start(redis_url=urls.redis_url, broker_url=urls.broker_url, database_url=urls.database_url)
    assert ended.returncode == 2
    assert "name the same broker in both" in ended.stderr + ended.stdout


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://localhost/1", "redis://localhost/1"),
        ("amqp://user:one@host//", "amqp://user:other@host//"),
        ("redis+socket:///run/r.sock?virtual_host=1", "redis+socket:///run/r.sock?virtual_host=1"),
    ],
)
def test_one_broker_under_two_spellings_is_one_broker(one: str, other: str) -> None:
    check_broker(one, other)


@pytest.mark.parametrize(("name", "value"), [("NAMESPACE", "a b"), ("REDIS_URL", "http://x")])
def test_a_worker_refuses_a_wrong_setting(urls: ServerUrls, name: str, value: str) -> None:
    environment = {"redis_url": urls.redis_url, "broker_url": urls.broker_url, "database_url": urls.database_url}
    ended = start(**(environment | {name.lower(): value}))
    assert ended.returncode != 0
    assert f"STATECORE_{name}" in ended.stderr + ended.stdout
