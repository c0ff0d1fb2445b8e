"""The supervisor: conflicts cost nothing, store errors back off, a success resets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statecore.agents.machine import Machine
from statecore.agents.memory_agents import MemoryAgents
from statecore.agents.memory_store import MemoryAgentStore
from statecore.agents.model import AgentRecord
from statecore.agents.store import Written
from statecore.backends.memory import MemorySpace
from statecore.claims.memory_store import MemoryClaimStore
from statecore.clock import ManualClock
from statecore.errors import InvalidTransitionError, StateConflictError, StoreUnavailableError
from statecore.supervisor.backoff import Backoff, full_jitter
from statecore.supervisor.memory_store import MemoryAssignStore
from statecore.supervisor.service import Supervisor
from statecore.supervisor.store import Assignment


class Ground:
    """A namespace in memory with one idle agent and two waiting tasks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        space = MemorySpace(self.clock)
        agents = MemoryAgents(space)
        self.agents = MemoryAgentStore(agents)
        self.claims = MemoryClaimStore(self.clock, space.ledger, space.lock, space.append, space.next_fence)
        self.assign = MemoryAssignStore(agents)
        self.agents.register("a1", (), "{}", "r1")
        self.claims.enqueue("t1", 5, (), 3, "e1")
        self.claims.enqueue("t2", 5, (), 3, "e2")


class Failing:
    """An assign store whose first calls meet an error and whose later ones reach the real store."""

    def __init__(self, store: MemoryAssignStore, *errors: Exception) -> None:
        self._store = store
        self._errors = list(errors)

    def assign_next(self, op_id: str) -> Assignment | None:
        if self._errors:
            raise self._errors.pop(0)
        return self._store.assign_next(op_id)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def longest(low: float, high: float) -> float:
    return high


def backoff(time: Time, base_s: float = 1.0, cap_s: float = 30.0) -> Backoff:
    return Backoff(base_s, cap_s, monotonic=time, uniform=longest)


def test_a_cas_conflict_adds_no_backoff_and_the_task_keeps_priority_and_place() -> None:
    ground, time = Ground(), Time()
    place = ground.claims.get("t1").place
    supervisor = Supervisor(Failing(ground.assign, StateConflictError("agent a1", "idle", "working")), backoff(time))
    assert supervisor.assign_next() is None
    assert (supervisor.backing_off_s(), supervisor.conflicts) == (0.0, 1)
    task = ground.claims.get("t1")
    assert (task.status, task.priority, task.place, task.attempts) == ("queued", 5, place, 0)
    assigned = supervisor.assign_next()
    assert assigned is not None
    assert assigned.task_id == "t1"


def test_a_store_error_backs_off_exponentially_and_a_success_resets() -> None:
    ground, time = Ground(), Time()
    down = StoreUnavailableError("down")
    supervisor = Supervisor(Failing(ground.assign, down, down, down), backoff(time))
    waits = []
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            supervisor.assign_next()
        waits.append(supervisor.backing_off_s())
        assert supervisor.assign_next() is None, "nothing is tried while backing off"
        time.now += waits[-1]
    assert waits == [1.0, 2.0, 4.0]
    assert supervisor.assign_next() is not None
    assert supervisor.backing_off_s() == 0.0
    assert supervisor.record_assign_error() == 1.0, "the success reset the count"


@given(st.integers(1, 10_000), st.floats(0.001, 10), st.floats(10, 1000))
def test_the_backoff_never_passes_its_cap(failures: int, base_s: float, cap_s: float) -> None:
    assert 0 <= full_jitter(failures, base_s, cap_s, longest) <= cap_s
    assert full_jitter(1, base_s, cap_s, longest) == pytest.approx(base_s)


class RacyStore:
    """Between the machine's read and its write, somebody else is faster."""

    def __init__(self, store: MemoryAgentStore) -> None:
        self._store = store

    def get(self, agent_id: str) -> AgentRecord:
        record = self._store.get(agent_id)
        self._store.compare_and_set(agent_id, record.state, "working", "faster")
        return record

    def compare_and_set(self, agent_id: str, expected: str, next_state: str, op_id: str) -> Written:
        return self._store.compare_and_set(agent_id, expected, next_state, op_id)


def test_the_two_step_machine_meets_the_conflict_when_somebody_is_faster() -> None:
    ground = Ground()
    with pytest.raises(StateConflictError) as caught:
        Machine(RacyStore(ground.agents)).apply_event("a1", "task_assigned")
    assert (caught.value.expected, caught.value.actual) == ("idle", "working")
    assert ground.agents.get("a1").state == "working", "the faster one's state stands"


def test_the_two_step_machine_validates_before_it_writes() -> None:
    ground = Ground()
    with pytest.raises(InvalidTransitionError):
        Machine(ground.agents).apply_event("a1", "output_ready")
    assert Machine(ground.agents).apply_event("a1", "task_assigned").state == "assigned"
