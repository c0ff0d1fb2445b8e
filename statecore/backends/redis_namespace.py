"""A namespace on a Redis server: its keys, and the one way to run a script in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statecore.backends.epoch import EpochKeeper
from statecore.backends.redis_server import RedisServer, SlotMovedError, typed_errors
from statecore.backends.scripts import Script, load_script
from statecore.clock import Clock
from statecore.errors import StoreUnavailableError

_TRIES = 4


class RedisNamespace:
    """Runs scripts with the keys of one namespace, which share a hash slot and an event stream."""

    def __init__(
        self,
        server: RedisServer,
        epochs: EpochKeeper,
        namespace: str,
        *,
        actor: str,
        stream_limit: int,
        clock: Clock | None = None,
    ) -> None:
        self.server = server
        self.namespace = namespace
        self._epochs = epochs
        self._actor = actor
        self._stream_limit = stream_limit
        self._clock = clock

    def key(self, *parts: str) -> str:
        """The key of that name in this namespace."""
        return f"sc:{{{self.namespace}}}:{':'.join(parts)}"

    def run(self, path: str, args: Sequence[Any], op_id: str | None = None) -> tuple[str, Any]:
        """Run a script: its (code, payload). With an op_id it is a write, and a lost answer UnknownOutcomeError."""
        for _ in range(_TRIES):
            try:
                code, payload = self._run_once(load_script(path), args, op_id)
            except SlotMovedError:
                continue
            if code != "NO_EPOCH":
                return code, payload
            self._epochs.distrust(self.namespace)
        raise StoreUnavailableError(f"namespace {self.namespace} found no server that knows its epoch; repeat it")

    def _run_once(self, script: Script, args: Sequence[Any], op_id: str | None) -> tuple[str, Any]:
        keys = [self.key("epoch"), self.key("events")]
        injected_now = "" if self._clock is None else self._clock.now_ms()
        with self.server.connection(keys[0]) as connection:
            if not self._epochs.verified(self.namespace, connection):
                with typed_errors("the check of the namespace's epoch", None):
                    self._epochs.verify(self.namespace, keys[0], connection)
            with typed_errors(script.name, op_id):
                code, payload = connection.run(script, keys, [injected_now, self._actor, self._stream_limit, *args])
        return code, payload

    def ask(self, *command: Any) -> Any:
        """A plain read."""
        with self.server.connection(self.key("epoch")) as connection, typed_errors(str(command[0]), None):
            return connection.ask(*command)
