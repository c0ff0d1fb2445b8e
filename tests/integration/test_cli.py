"""The command line as its users meet it: a process with an environment, an exit code and text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from statecore.backends.database import Database, newest_revision
from statecore.backends.embedded import ServerUrls
from statecore.cli.processes import CeleryProcesses, CeleryStartError, celery_environment
from statecore.settings import Settings

ROOT = Path(__file__).parents[2]
NOBODY = "127.0.0.1:1"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`statecore ...` with these variables and no other setting."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STATECORE_")}
    return subprocess.run(
        [sys.executable, "-m", "statecore.cli.main", *arguments],
        env=kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_one_sentence(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is not in: {done.stderr}"


@pytest.fixture
def empty_home(tmp_path: Path) -> dict[str, str]:
    """A home in which no embedded server runs."""
    return {"STATECORE_HOME": str(tmp_path / "home")}


@pytest.fixture
def fresh_database(urls: ServerUrls) -> Iterator[str]:
    """The URL of a database without a schema."""
    plain = urls.database_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("CREATE DATABASE cli_test")
        yield plain.replace("/postgres?", "/cli_test?")
        connection.execute("DROP DATABASE cli_test WITH (FORCE)")


@pytest.mark.parametrize("command", [(), ("demo",), ("config",), ("migrate",), ("version",)])
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "Usage: statecore" in done.stdout


def test_the_exit_codes_are_in_the_help() -> None:
    assert "Exit codes: 0 fine; 1 the verdict does not hold; 2" in run("--help").stdout


def test_config_hides_passwords_and_names_each_source(empty_home: dict[str, str]) -> None:
    variables = {
        "STATECORE_REDIS_URL": f"redis://:hunter2@{NOBODY}/0",
        "STATECORE_DATABASE_URL": f"postgresql://me:hunter2@{NOBODY}/control",
        "STATECORE_BROKER_URL": f"amqp://me:hunter2@{NOBODY}//",
        "statecore_namespace": "fleet-1",
        **empty_home,
    }
    table, as_json = run("config", **variables), run("config", "--json", **variables)
    assert table.returncode == as_json.returncode == 0
    assert "hunter2" not in table.stdout + table.stderr + as_json.stdout + as_json.stderr
    assert "STATECORE_REDIS_URL" in table.stdout
    shown = json.loads(as_json.stdout)
    assert shown["settings"]["redis_url"] == f"redis://:***@{NOBODY}/0"
    assert shown["sources"]["redis_url"] == shown["sources"]["namespace"] == "environment"
    assert shown["sources"]["redis_timeout_s"] == "default"


def test_config_shows_embedded_servers_that_run(urls: ServerUrls, home: Path) -> None:
    shown = json.loads(run("config", "--json", STATECORE_HOME=str(home / "servers")).stdout)
    assert shown["settings"]["redis_url"] == urls.redis_url
    assert shown["sources"]["redis_url"] == "embedded servers"


def test_a_wrong_value_is_one_sentence() -> None:
    done = run("config", STATECORE_REDIS_URL="http://:hunter2@localhost")
    assert_one_sentence(done, "STATECORE_REDIS_URL", "redis://")
    assert "hunter2" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_debug_shows_where_an_error_came_from() -> None:
    done = run("--debug", "config", STATECORE_RETRY_LIMIT="many")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "STATECORE_RETRY_LIMIT" in done.stderr


def test_migrate_says_what_it_did_and_check_changes_nothing(fresh_database: str, empty_home: dict[str, str]) -> None:
    variables = {"STATECORE_DATABASE_URL": fresh_database, **empty_home}
    newest = newest_revision()
    assert_one_sentence(run("migrate", "--check", **variables), "at nothing", newest, "statecore migrate")
    database = Database(fresh_database.replace("postgresql://", "postgresql+psycopg://"))
    assert database.revision() is None, "--check must not migrate"
    first, second = run("migrate", **variables), run("migrate", **variables)
    assert (first.returncode, first.stdout) == (0, f"The schema went from nothing to {newest}.\n")
    assert (second.returncode, second.stdout) == (0, f"The schema was up to date already ({newest}).\n")
    assert first.stderr == second.stderr == "", "Alembic must be quiet"
    assert run("migrate", "--check", **variables).returncode == 0
    assert database.revision() == newest
    database.close()


def test_migrate_takes_running_embedded_servers(urls: ServerUrls, home: Path) -> None:
    assert "up to date" in run("migrate", "--check", STATECORE_HOME=str(home / "servers")).stdout


def test_migrate_without_a_database_says_what_to_set(empty_home: dict[str, str]) -> None:
    assert_one_sentence(run("migrate", **empty_home), "STATECORE_DATABASE_URL is not set")


def test_an_unreachable_postgres_is_no_traceback() -> None:
    done = run("migrate", STATECORE_DATABASE_URL=f"postgresql://me:hunter2@{NOBODY}/control")
    assert_one_sentence(done, "can't be reached")
    assert "hunter2" not in done.stderr


def test_the_demo_refuses_your_own_database_without_a_schema(urls: ServerUrls, fresh_database: str) -> None:
    done = run(
        "demo",
        STATECORE_REDIS_URL=urls.redis_url,
        STATECORE_BROKER_URL=urls.broker_url,
        STATECORE_DATABASE_URL=fresh_database,
    )
    assert_one_sentence(done, "run: statecore migrate")


def test_the_demo_on_an_unreachable_redis_is_no_traceback(urls: ServerUrls) -> None:
    done = run(
        "demo",
        STATECORE_REDIS_URL=f"redis://:hunter2@{NOBODY}/0",
        STATECORE_BROKER_URL=urls.broker_url,
        STATECORE_DATABASE_URL=urls.database_url,
    )
    assert_one_sentence(done, "Redis at", "can't be reached")
    assert "hunter2" not in done.stdout + done.stderr


def test_wrong_usage_exits_with_2() -> None:
    assert run("demo", "--agents", "1").returncode == run("nonsense").returncode == 2


def test_version_names_the_schema_that_it_needs() -> None:
    done = run("version")
    assert done.returncode == 0
    assert newest_revision() in done.stdout
    assert "celery" in done.stdout


def test_a_worker_that_dies_at_start_is_an_error_with_the_end_of_its_log(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "workers.py").write_text("raise RuntimeError('a worker that can not start')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    processes = CeleryProcesses(tmp_path, settings)
    worker = processes.start_worker("worker-1", 1)
    with pytest.raises(CeleryStartError, match="ended while it was starting") as caught:
        processes.wait_ready(time.sleep, worker)
    assert "a worker that can not start" in caught.value.lines
    processes.stop()


def test_a_worker_that_does_not_come_up_in_time_is_an_error(settings: Settings, tmp_path: Path) -> None:
    nowhere = settings.model_copy(update={"broker_url": f"redis://{NOBODY}/0"})
    processes = CeleryProcesses(tmp_path, nowhere)
    worker = processes.start_worker("worker-1", 1)
    with pytest.raises(CeleryStartError, match="did not come up in 1 s"):
        processes.wait_ready(time.sleep, worker, timeout_s=1.0)
    processes.stop()
    assert not worker.is_running


def test_celery_finds_our_settings_and_no_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECORE_RESULT_URL", "redis://elsewhere/0")
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere/0")
    environment = celery_environment(settings)
    assert "redis://elsewhere/0" not in environment.values()
    assert environment["STATECORE_NAMESPACE"] == settings.namespace
    assert environment["STATECORE_BROKER_URL"] == settings.broker_url
