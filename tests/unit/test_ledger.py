"""The queue's pure model: the agents' side of it, what it forgets, and what holds in any order of calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statecore.claims.document import Document, Layout
from statecore.claims.ledger import OPERATIONS_KEPT, Ledger
from statecore.claims.model import DEFAULT_MAX_ATTEMPTS, FINISHED_KEPT_S, Task, TaskStatus
from statecore.errors import (
    LeaseLostError,
    LimitExceededError,
    TaskExistsError,
    TaskNotFoundError,
    TaskTakenError,
)
from statecore.events import EventDraft

NOW = 1_700_000_000_000
FORGOTTEN = NOW + FINISHED_KEPT_S * 1000


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def next_fence() -> Callable[[], int]:
    return itertools.count(1).__next__


def lease(status: str, fence: int | None = None, claimed_by: str | None = None) -> dict[str, Any]:
    return {"status": status, "fence": fence, "claimed_by": claimed_by}


def queue(ledger: Ledger, *task_ids: str, priority: int = 5, max_attempts: int = 3) -> None:
    for task_id in task_ids:
        ledger.enqueue(task_id, priority, (), max_attempts, f"enqueue-{task_id}", NOW)


def waiting(ledger: Ledger) -> list[str]:
    return [task.task_id for task in ledger.waiting()]


class TestTake:
    def test_a_queued_task_leaves_the_queue_with_its_priority_and_place(
        self, ledger: Ledger, next_fence: Callable[[], int]
    ) -> None:
        queue(ledger, "t1", "t2", "t3")
        task, (event,) = ledger.take("t2", "a1", 99, "op-1", NOW, next_fence)
        assert (task.status, task.claimed_by, task.fence) == (TaskStatus.CLAIMED, "a1", 1)
        assert (task.priority, task.place, task.attempts) == (5, 2, 1)
        assert waiting(ledger) == ["t1", "t3"]
        assert (event.kind, event.subject, event.op_id) == ("task:claimed", "t2", "op-1")
        assert (event.before, event.after) == (lease("queued"), lease("claimed", 1, "a1"))

    def test_an_unknown_task_is_created_in_the_agents_hands(
        self, ledger: Ledger, next_fence: Callable[[], int]
    ) -> None:
        queue(ledger, "t1")
        task, (event,) = ledger.take("new", "a1", 7, "op-1", NOW, next_fence)
        assert (task.priority, task.place, task.attempts) == (7, 2, 1)
        assert (task.capabilities, task.max_attempts) == ((), DEFAULT_MAX_ATTEMPTS)
        assert ledger.depth() == 1
        assert (event.kind, event.before) == ("task:claimed", None)

    def test_a_full_queue_does_not_matter_for_a_task_that_never_waits(self, next_fence: Callable[[], int]) -> None:
        ledger = Ledger(limit=1)
        queue(ledger, "t1")
        assert ledger.take("new", "a1", 7, "op-1", NOW, next_fence)[0].claimed_by == "a1"

    def test_no_lease_runs_out_and_a_renewal_gives_it_none(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        task, _ = ledger.take("t1", "a1", 5, "op-1", NOW, next_fence)
        assert task.fence is not None
        assert ledger.renew("t1", task.fence, 1.0, "op-2", NOW) == (task, [])
        assert ledger.reclaim_stale(10, "op-3", NOW * 2) == ([], [])

    def test_what_the_agent_holds_already_stays_as_it_is(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        task, _ = ledger.take("t1", "a1", 5, "op-1", NOW, next_fence)
        assert ledger.take("t1", "a1", 9, "op-2", NOW + 5, next_fence) == (task, [])

    def test_what_another_holds_is_taken(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        queue(ledger, "t1")
        task, _ = ledger.claim_next("a2", (), 30, "op-1", NOW, next_fence)
        with pytest.raises(TaskTakenError) as taken:
            ledger.take("t1", "a1", 5, "op-2", NOW, next_fence)
        assert (taken.value.task_id, taken.value.holder) == ("t1", "a2")
        assert ledger.get("t1", NOW) == task

    def test_what_has_ended_is_over(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        ledger.take("t1", "a1", 5, "op-1", NOW, next_fence)
        ledger.finish("t1", "a1", "op-2", NOW)
        # Also for the agent whose name the completed task still shows.
        with pytest.raises(TaskExistsError):
            ledger.take("t1", "a1", 5, "op-3", NOW, next_fence)


class TestFinish:
    def test_the_holder_completes(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        ledger.take("t1", "a1", 5, "op-1", NOW, next_fence)
        task, (event,) = ledger.finish("t1", "a1", "op-2", NOW)
        assert task is not None
        assert (task.status, task.claimed_by, task.fence) == (TaskStatus.COMPLETED, "a1", 1)
        assert (event.kind, event.before) == ("task:completed", lease("claimed", 1, "a1"))
        assert event.after == lease("completed", 1, "a1")

    def test_a_claimed_lease_no_longer_runs_out(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        queue(ledger, "t1")
        ledger.claim_next("a1", (), 30, "op-1", NOW, next_fence)
        ledger.finish("t1", "a1", "op-2", NOW)
        assert ledger.reclaim_stale(10, "op-3", NOW + 60_000) == ([], [])

    def test_nobody_else_completes(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        queue(ledger, "queued")
        held, _ = ledger.take("held", "a2", 5, "op-1", NOW, next_fence)
        assert ledger.finish("held", "a1", "op-2", NOW) == (held, [])
        assert ledger.finish("queued", "a1", "op-3", NOW) == (ledger.get("queued", NOW), [])
        assert ledger.finish("unknown", "a1", "op-4", NOW) == (None, [])

    def test_a_second_time_changes_nothing(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        ledger.take("t1", "a1", 5, "op-1", NOW, next_fence)
        done, _ = ledger.finish("t1", "a1", "op-2", NOW)
        assert ledger.finish("t1", "a1", "op-3", NOW) == (done, [])
        assert ledger.put_back("t1", "a1", True, "op-4", NOW) == (done, [])


class TestPutBack:
    @pytest.mark.parametrize(
        ("count_attempt", "kind", "attempts"), [(True, "task:reclaimed", 1), (False, "task:released", 0)]
    )
    def test_the_task_waits_at_its_place_again(
        self,
        ledger: Ledger,
        next_fence: Callable[[], int],
        count_attempt: bool,
        kind: str,
        attempts: int,
    ) -> None:
        queue(ledger, "t1", "t2", "t3")
        ledger.take("t2", "a1", 0, "op-1", NOW, next_fence)
        task, (event,) = ledger.put_back("t2", "a1", count_attempt, "op-2", NOW)
        assert task is not None
        assert (task.status, task.attempts, task.fence) == (TaskStatus.QUEUED, attempts, None)
        assert waiting(ledger) == ["t1", "t2", "t3"]
        assert (event.kind, event.data) == (kind, {"attempts": attempts})
        assert (event.before, event.after) == (lease("claimed", 1, "a1"), lease("queued"))

    def test_the_last_attempt_fails_it(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        queue(ledger, "t1", max_attempts=1)
        ledger.take("t1", "a1", 5, "op-1", NOW, next_fence)
        task, (event,) = ledger.put_back("t1", "a1", True, "op-2", NOW)
        assert task is not None
        assert (task.status, task.attempts) == (TaskStatus.FAILED, 1)
        assert (event.kind, event.after) == ("task:failed", lease("failed"))
        assert ledger.depth() == 0

    def test_an_attempt_that_does_not_count_is_never_the_last(
        self, ledger: Ledger, next_fence: Callable[[], int]
    ) -> None:
        queue(ledger, "t1", max_attempts=1)
        for number in range(3):
            ledger.take("t1", "a1", 5, f"take-{number}", NOW, next_fence)
            task, _ = ledger.put_back("t1", "a1", False, f"back-{number}", NOW)
            assert task is not None
            assert task.status is TaskStatus.QUEUED

    def test_nobody_else_puts_it_back(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        held, _ = ledger.take("t1", "a2", 5, "op-1", NOW, next_fence)
        assert ledger.put_back("t1", "a1", True, "op-2", NOW) == (held, [])
        assert ledger.put_back("unknown", "a1", True, "op-3", NOW) == (None, [])


class TestForgetting:
    def test_an_ended_task_is_forgotten_after_its_time(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        old, _ = ledger.take("t1", "a1", 5, "op-1", NOW, next_fence)
        ledger.finish("t1", "a1", "op-2", NOW)
        assert ledger.get("t1", FORGOTTEN - 1).status is TaskStatus.COMPLETED
        with pytest.raises(TaskNotFoundError):
            ledger.get("t1", FORGOTTEN)
        ledger.enqueue("t1", 9, ("gpu",), 1, "op-1", FORGOTTEN)
        new, _ = ledger.claim_next("a1", ("gpu",), 30, "op-3", FORGOTTEN, next_fence)
        assert new is not None
        assert new.place > old.place
        assert isinstance(ledger.complete("t1", old.fence or 0, "op-4", FORGOTTEN)[0], LeaseLostError)

    def test_tasks_that_have_not_ended_are_never_forgotten(self, ledger: Ledger, next_fence: Callable[[], int]) -> None:
        queue(ledger, "waits")
        ledger.take("held", "a1", 5, "op-1", NOW, next_fence)
        assert ledger.get("waits", NOW * 2).status is TaskStatus.QUEUED
        assert ledger.get("held", NOW * 2).status is TaskStatus.CLAIMED

    def test_idle_claimers_are_forgotten_and_busy_ones_are_not(
        self, ledger: Ledger, next_fence: Callable[[], int]
    ) -> None:
        queue(ledger, "t1", "t2", "t3")
        for claimer, op_id, at_ms in (
            ("idle", "op-1", NOW),
            ("busy", "op-2", NOW),
            ("busy", "op-3", NOW + 1),
        ):
            ledger.claim_next(claimer, (), 30, op_id, at_ms, next_fence)
        ledger.claim_next("other", (), 30, "op-4", FORGOTTEN, next_fence)
        assert {grant.claimer for grant in ledger.grants} == {"busy"}

    def test_32_operations_per_task_and_32_claims_per_claimer_are_kept(
        self, ledger: Ledger, next_fence: Callable[[], int]
    ) -> None:
        queue(ledger, *(f"t{number}" for number in range(100)))
        for number in range(100):
            ledger.claim_next("a1", (), 30, f"claim-{number}", NOW, next_fence)
            ledger.renew("t0", 1, 30, f"renew-{number}", NOW)
        (entry,) = (entry for entry in ledger.entries if entry.task.task_id == "t0")
        assert list(entry.operations) == [f"renew-{number}" for number in range(100 - OPERATIONS_KEPT, 100)]
        assert [grant.op_id for grant in ledger.grants] == [f"claim-{number}" for number in range(68, 100)]


class TestRefusal:
    @pytest.mark.parametrize("operation", ["complete", "release"])
    def test_it_is_audited_once_per_op_id(self, ledger: Ledger, next_fence: Callable[[], int], operation: str) -> None:
        queue(ledger, "t1")
        write = getattr(ledger, operation)
        lost, (event,) = write("t1", 7, "op-1", NOW)
        assert lost.args == ("task t1", "7", "queued")
        assert (event.kind, event.before, event.after) == ("task:refused", None, None)
        assert event.data == {"operation": operation, "presented": "7", "current": "queued"}
        ledger.claim_next("a1", (), 30, "op-2", NOW, next_fence)
        assert write("t1", 7, "op-1", NOW) == (lost, [])


class LedgerMachine(RuleBasedStateMachine):
    """Any calls in any order, with a plain dictionary of what the events said as the witness."""

    task_ids = st.sampled_from([f"t{number}" for number in range(6)])
    agent_ids = st.sampled_from(["a1", "a2", "a3"])
    abilities = st.sets(st.sampled_from(["gpu", "python"]))

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger(limit=4)
        self.now_ms = NOW
        self.fences = itertools.count(1)
        self.op_ids = itertools.count(1)
        self.told: dict[str, dict[str, Any]] = {}
        self.last_fence: dict[str, int] = {}

    def op_id(self) -> str:
        return f"op-{next(self.op_ids)}"

    def hear(self, events: list[EventDraft]) -> None:
        for event in events:
            if event.kind == "task:refused":
                continue
            assert event.before == self.told.get(event.subject), "an event does not follow from the last one"
            assert event.after is not None
            self.told[event.subject] = event.after
            if event.kind == "task:claimed":
                assert event.after["fence"] > self.last_fence.get(event.subject, 0)
                self.last_fence[event.subject] = event.after["fence"]

    @rule(task_id=task_ids, priority=st.integers(0, 2), wanted=abilities, max_attempts=st.integers(1, 2))
    def enqueue(self, task_id: str, priority: int, wanted: set[str], max_attempts: int) -> None:
        full = self.ledger.depth() >= 4
        try:
            _, events = self.ledger.enqueue(task_id, priority, list(wanted), max_attempts, self.op_id(), self.now_ms)
        except TaskExistsError:
            assert task_id in self.told
        except LimitExceededError:
            assert full
        else:
            assert not (full and events)
            self.hear(events)

    @rule(claimer=agent_ids, able=abilities, lease_s=st.integers(1, 20))
    def claim(self, claimer: str, able: set[str], lease_s: int) -> None:
        fitting = [task for task in self.tasks(TaskStatus.QUEUED) if set(task.capabilities) <= able]
        best = min(fitting, key=lambda task: (-task.priority, task.place), default=None)
        op_id = self.op_id()
        task, events = self.ledger.claim_next(claimer, list(able), lease_s, op_id, self.now_ms, self.fences.__next__)
        assert (task and task.task_id) == (best and best.task_id)
        self.hear(events)
        if task is not None:
            repeat = self.ledger.claim_next(claimer, list(able), lease_s, op_id, self.now_ms, self.fences.__next__)
            assert repeat == (task, [])

    @rule(
        task_id=task_ids,
        operation=st.sampled_from(["renew", "complete", "release"]),
        age=st.integers(0, 1),
    )
    def write(self, task_id: str, operation: str, age: int) -> None:
        fence = self.last_fence.get(task_id, 1) - age
        op_id = self.op_id()
        arguments = (task_id, fence, 10, op_id) if operation == "renew" else (task_id, fence, op_id)
        call = getattr(self.ledger, operation)
        if task_id not in self.told:
            with pytest.raises(TaskNotFoundError):
                call(*arguments, self.now_ms)
            return
        is_current = self.told[task_id] == {**self.told[task_id], "status": "claimed", "fence": fence}
        answer, events = call(*arguments, self.now_ms)
        assert isinstance(answer, Task) == is_current
        self.hear(events)
        assert call(*arguments, self.now_ms) == (answer, [])

    @rule(task_id=task_ids, agent_id=agent_ids)
    def take(self, task_id: str, agent_id: str) -> None:
        try:
            task, events = self.ledger.take(task_id, agent_id, 1, self.op_id(), self.now_ms, self.fences.__next__)
        except TaskTakenError:
            assert self.told[task_id]["status"] == "claimed"
            assert self.told[task_id]["claimed_by"] != agent_id
        except TaskExistsError:
            assert self.told[task_id]["status"] in ("completed", "failed")
        else:
            self.hear(events)
            assert task.claimed_by == agent_id

    @rule(task_id=task_ids, agent_id=agent_ids, how=st.sampled_from(["finish", "count", "uncounted"]))
    def give_up(self, task_id: str, agent_id: str, how: str) -> None:
        told = self.told.get(task_id, {})
        holds = told.get("status") == "claimed" and told.get("claimed_by") == agent_id
        if how == "finish":
            _, events = self.ledger.finish(task_id, agent_id, self.op_id(), self.now_ms)
        else:
            counted = how == "count"
            _, events = self.ledger.put_back(task_id, agent_id, counted, self.op_id(), self.now_ms)
        assert bool(events) == holds
        self.hear(events)

    @rule(seconds=st.integers(1, 15), limit=st.integers(1, 3))
    def reclaim(self, seconds: int, limit: int) -> None:
        self.now_ms += seconds * 1000
        tasks, events = self.ledger.reclaim_stale(limit, self.op_id(), self.now_ms)
        assert [task.task_id for task in tasks] == [event.subject for event in events]
        assert len(tasks) <= limit
        self.hear(events)

    @precondition(lambda self: any(told["status"] in ("completed", "failed") for told in self.told.values()))
    @rule()
    def forget(self) -> None:
        self.now_ms += FINISHED_KEPT_S * 1000
        self.told = {
            task_id: told for task_id, told in self.told.items() if told["status"] not in ("completed", "failed")
        }
        with pytest.raises(TaskNotFoundError):
            self.ledger.get("never", self.now_ms)

    @rule()
    def write_down_and_read_again(self) -> None:
        text = Layout(limit=4).dump(Document(self.ledger, fence=0))
        json.loads(text)
        again = Layout(limit=4).load(text)
        assert Layout(limit=4).dump(again) == text
        self.ledger = again.ledger

    def tasks(self, *statuses: TaskStatus) -> list[Task]:
        return [entry.task for entry in self.ledger.entries if entry.task.status in statuses]

    @invariant()
    def the_events_tell_every_tasks_state(self) -> None:
        found = {
            task.task_id: lease(task.status.value, task.fence, task.claimed_by) for task in self.tasks(*TaskStatus)
        }
        assert found == self.told

    @invariant()
    def a_holder_is_shown_by_held_and_completed_tasks_only(self) -> None:
        for task in self.tasks(*TaskStatus):
            shown = {task.claimed_by is not None, task.claimed_at is not None, task.fence is not None}
            assert shown == {task.status in (TaskStatus.CLAIMED, TaskStatus.COMPLETED)}
            assert 0 <= task.attempts <= task.max_attempts

    @invariant()
    def the_queue_is_in_order(self) -> None:
        queued = sorted(self.tasks(TaskStatus.QUEUED), key=lambda task: (-task.priority, task.place))
        assert list(self.ledger.waiting()) == queued
        assert self.ledger.depth() == len(queued)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyCallsInAnyOrder = LedgerMachine.TestCase
