"""The supervisor: hands waiting tasks to idle agents, and leaves a failing store alone for a while."""

from __future__ import annotations

from statecore.errors import ConflictError, StoreError
from statecore.ids import check_op_id
from statecore.supervisor.backoff import Backoff
from statecore.supervisor.store import Assignment, AssignStore


class Supervisor:
    """Assigns tasks in one namespace. A conflict is healthy and costs nothing; only a store error backs off."""

    def __init__(self, store: AssignStore, backoff: Backoff) -> None:
        self._store = store
        self._backoff = backoff
        self.conflicts = 0

    def assign_next(self, *, op_id: str | None = None) -> Assignment | None:
        """The best waiting task is an idle agent's now; None if no pair waits, another was first, or backing off."""
        if self._backoff.remaining_s() > 0:
            return None
        try:
            assignment = self._store.assign_next(check_op_id(op_id))
        except ConflictError:
            self.conflicts += 1
            return None
        except StoreError:
            self.record_assign_error()
            raise
        self._backoff.record_success()
        return assignment

    def record_assign_error(self) -> float:
        """Note that the store failed; the seconds for which `assign_next` does nothing."""
        return self._backoff.record_failure()

    def backing_off_s(self) -> float:
        """Seconds until the store is tried again, 0 if it may be tried now."""
        return self._backoff.remaining_s()
