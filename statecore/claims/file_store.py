"""The queue in one JSON file: for one host without a server.

Every write takes an exclusive `flock` on a side file, reads the document, works on the ledger, writes a
temporary file, syncs it and renames it over the document. A reader, or whoever comes after a crash, sees the
document before or after the write, never a half. A claim is read again and verified after the lock is gone.

Not for NFS or another network file system: their locks may exclude nobody. The verification catches what it
can, but that is a net, not a promise.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from statecore.claims.document import Document, Layout
from statecore.claims.index import Answer
from statecore.claims.ledger import DEFAULT_QUEUE_LIMIT, Ledger
from statecore.claims.model import Task
from statecore.clock import Clock, SystemClock
from statecore.errors import (
    CorruptDocumentError,
    LeaseLostError,
    SettingsError,
    StoreUnavailableError,
    TaskNotFoundError,
    UnknownOutcomeError,
)
from statecore.events import Event, EventDraft
from statecore.ids import new_op_id

CLAIM_TRIES = 8
_SYSTEM_CLOCK = SystemClock()

T = TypeVar("T")
Operation = Callable[[Document, int], tuple[T, list[EventDraft]]]


class FileClaimStore:
    """At most one holder per task on one host; `kill -9` of any process at any time corrupts nothing."""

    def __init__(
        self, path: str | os.PathLike[str], clock: Clock = _SYSTEM_CLOCK, limit: int = DEFAULT_QUEUE_LIMIT
    ) -> None:
        self._path = Path(path).absolute()
        if not self._path.parent.is_dir():
            raise SettingsError(f"the claims file's folder {self._path.parent} does not exist; create it first")
        self._clock = clock
        self._limit = limit
        self._layout = Layout(limit)

    def enqueue(self, task_id: str, priority: int, capabilities: Sequence[str], max_attempts: int, op_id: str) -> Task:
        return self._settle(
            op_id,
            lambda document, now_ms: document.ledger.enqueue(
                task_id, priority, capabilities, max_attempts, op_id, now_ms
            ),
        )

    def claim_next(self, claimer: str, capabilities: Sequence[str], lease_s: float, op_id: str) -> Task | None:
        for _ in range(CLAIM_TRIES):
            task, events = self._change(
                op_id,
                lambda document, now_ms: document.ledger.claim_next(
                    claimer, capabilities, lease_s, op_id, now_ms, document.next_fence
                ),
            )
            # Without an event nothing was claimed now: there is no task, or this is the first answer again.
            if task is None or not events or self._is_ours(task):
                return task
        raise StoreUnavailableError(
            f"claims in {self._path} are overwritten by others; keep it on a local disk, where locks work"
        )

    def renew(self, task_id: str, fence: int, lease_s: float, op_id: str) -> Task:
        return self._settle(
            op_id, lambda document, now_ms: document.ledger.renew(task_id, fence, lease_s, op_id, now_ms)
        )

    def complete(self, task_id: str, fence: int, op_id: str) -> Task:
        return self._settle(op_id, lambda document, now_ms: document.ledger.complete(task_id, fence, op_id, now_ms))

    def release(self, task_id: str, fence: int, op_id: str) -> Task:
        return self._settle(op_id, lambda document, now_ms: document.ledger.release(task_id, fence, op_id, now_ms))

    def reclaim_stale(self, limit: int) -> list[Task]:
        op_id = new_op_id()
        tasks, _ = self._change(op_id, lambda document, now_ms: document.ledger.reclaim_stale(limit, op_id, now_ms))
        return tasks

    def get(self, task_id: str) -> Task:
        return self._load(self._read()).ledger.get(task_id, self._clock.now_ms())

    def depth(self) -> int:
        return self._load(self._read()).ledger.depth()

    def events(self) -> list[Event]:
        """The last 1,000 events, oldest first."""
        return self._load(self._read()).events()

    def _settle(self, op_id: str, operation: Operation[Answer]) -> Task:
        answer, _ = self._change(op_id, operation)
        if isinstance(answer, LeaseLostError):
            raise answer
        return answer

    def _change(self, op_id: str, operation: Operation[T]) -> tuple[T, list[EventDraft]]:
        with self._exclusive():
            text = self._read()
            document = self._load(text)
            now_ms = self._clock.now_ms()
            answer, events = operation(document, now_ms)
            document.append(events, now_ms)
            changed = self._layout.dump(document)
            if changed != text:
                self._replace(changed, op_id)
            return answer, events

    def _is_ours(self, claimed: Task) -> bool:
        try:
            found = self.get(claimed.task_id)
        except TaskNotFoundError:
            return False
        return (found.claimed_by, found.fence) == (claimed.claimed_by, claimed.fence)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        # Opened anew each time: a flock belongs to the open file, so it keeps threads apart as well.
        try:
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreUnavailableError(f"can't open the lock file of {self._path}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self) -> str | None:
        try:
            return self._path.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailableError(f"can't read {self._path}: {error}") from error

    def _load(self, text: str | None) -> Document:
        if text is None:
            # From the clock, not from zero: the fences of a deleted file must stay old in its successor.
            return Document(Ledger(self._limit), fence=self._clock.now_ms())
        try:
            return self._layout.load(text)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise CorruptDocumentError(str(self._path), f"{type(error).__name__}: {error}") from error

    def _replace(self, text: str, op_id: str) -> None:
        try:
            self._sweep()
            temporary = f"{self._path}.{uuid.uuid4().hex}.tmp"
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError as error:
            raise StoreUnavailableError(f"can't write {self._path}: {error}") from error
        try:
            self._sync_folder()
        except OSError as error:
            raise UnknownOutcomeError(f"a write to {self._path}", op_id, str(error)) from error

    def _sweep(self) -> None:
        """Remove what killed writers left: whoever holds the lock is the only living one."""
        for name in os.listdir(self._path.parent):
            if name.startswith(self._path.name + ".") and name.endswith(".tmp"):
                with suppress(FileNotFoundError):
                    os.unlink(self._path.parent / name)

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
