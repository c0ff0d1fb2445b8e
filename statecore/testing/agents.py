"""The conformance suite of the agents' ports: a store passes all of it, or it is not a store of agents.

Subclass `AgentStoreSuite` and give it a `kit` fixture; pytest does the rest.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import pytest

from statecore.agents.machine import Machine
from statecore.agents.model import AgentRecord, EventOutcome, EventRequest, OutcomeCode
from statecore.agents.store import AgentStore, HeartbeatStore, InboxStore
from statecore.claims.store import ClaimStore
from statecore.errors import (
    AgentNotFoundError,
    EarlyEventError,
    InvalidTransitionError,
    LeaseLostError,
    LimitExceededError,
    StateConflictError,
    StatecoreError,
    TaskExistsError,
    TaskNotFoundError,
    TaskTakenError,
)
from statecore.events import Event
from statecore.ids import new_op_id
from statecore.supervisor.store import AssignStore

INBOX_LIMIT = 300
EARLY_WAIT_S = 5.0
CYCLE = ("task_assigned", "work_started", "output_ready", "output_delivered")


@dataclass(frozen=True)
class AgentKit:
    """The ports of one namespace. Inbox limit and early wait must be those of this module."""

    agents: AgentStore
    inbox: InboxStore
    heartbeats: HeartbeatStore
    claims: ClaimStore
    assign: AssignStore
    events: Callable[[], list[Event]]
    advance: Callable[[float], None]

    def register(self, agent_id: str = "a1", *capabilities: str) -> AgentRecord:
        return self.agents.register(agent_id, capabilities, "{}", new_op_id()).record

    def apply(self, event: str, agent_id: str = "a1", **fields: object) -> AgentRecord:
        return self.agents.apply_event(request(event, agent_id, **fields)).record

    def kinds(self, subject: str = "a1") -> list[str]:
        return [event.kind for event in self.events() if event.subject == subject]


def request(event: str, agent_id: str = "a1", **fields: object) -> EventRequest:
    """A request with a fresh op_id, and a task id where the event assigns one."""
    if event == "task_assigned":
        fields.setdefault("task_id", "t1")
    return EventRequest(agent_id, event, **({"op_id": new_op_id()} | fields))  # type: ignore[arg-type]


class AgentStoreSuite(ABC):
    """What every store of agents promises."""

    @pytest.fixture
    @abstractmethod
    def kit(self) -> AgentKit:
        """A fresh namespace."""

    # The primitive.

    def test_cas_swaps_when_the_state_is_the_expected_one(self, kit: AgentKit) -> None:
        kit.register()
        record = kit.agents.compare_and_set("a1", "idle", "assigned", new_op_id()).record
        assert (record.state, record.version) == ("assigned", 2)
        assert kit.agents.get("a1") == record

    def test_cas_conflict_names_expected_and_actual_and_changes_nothing(self, kit: AgentKit) -> None:
        before = kit.register()
        with pytest.raises(StateConflictError) as caught:
            kit.agents.compare_and_set("a1", "working", "idle", new_op_id())
        assert (caught.value.expected, caught.value.actual) == ("working", "idle")
        assert kit.agents.get("a1") == before

    def test_cas_of_an_unknown_agent_is_not_found_and_leaves_no_ghost(self, kit: AgentKit) -> None:
        with pytest.raises(AgentNotFoundError):
            kit.agents.compare_and_set("ghost", "idle", "assigned", new_op_id())
        assert kit.agents.list("", 10) == []

    def test_cas_race_of_ten_has_exactly_one_winner(self, kit: AgentKit) -> None:
        kit.register()
        outcomes = race(10, lambda _: kit.agents.compare_and_set("a1", "idle", "assigned", new_op_id()))
        assert outcomes == {"ok": 1, "StateConflictError": 9}
        assert kit.agents.get("a1").version == 2

    # Events.

    def test_a_task_travels_through_the_whole_cycle(self, kit: AgentKit) -> None:
        kit.register()
        states = [kit.apply(event).state for event in CYCLE]
        assert states == ["assigned", "working", "reporting", "idle"]
        assert kit.agents.get("a1").current_task_id is None
        assert kit.claims.get("t1").status == "completed"

    def test_an_assignment_sets_the_task_and_its_priority(self, kit: AgentKit) -> None:
        kit.register()
        record = kit.apply("task_assigned", task_id="t7", priority=5)
        assert (record.current_task_id, record.current_task_priority) == ("t7", 5)
        task = kit.claims.get("t7")
        assert (task.status, task.claimed_by, task.priority) == ("claimed", "a1", 5)

    def test_an_event_without_an_edge_is_invalid_and_changes_nothing(self, kit: AgentKit) -> None:
        before = kit.register()
        with pytest.raises(InvalidTransitionError) as caught:
            kit.apply("work_started")
        assert (caught.value.state, caught.value.event) == ("idle", "work_started")
        assert kit.agents.get("a1") == before

    def test_an_event_for_an_unknown_agent_is_not_found_and_leaves_no_ghost(self, kit: AgentKit) -> None:
        with pytest.raises(AgentNotFoundError):
            kit.apply("task_assigned", "ghost")
        assert kit.agents.list("", 10) == []
        with pytest.raises(TaskNotFoundError):
            kit.claims.get("t1")

    def test_every_change_raises_the_version_by_one_and_appends_its_event(self, kit: AgentKit) -> None:
        kit.register()
        op_ids = [new_op_id() for _ in CYCLE]
        for event, op_id in zip(CYCLE, op_ids, strict=True):
            kit.apply(event, op_id=op_id, data=json.dumps({"note": event}))
        audit = [event for event in kit.events() if event.subject == "a1"]
        assert [event.kind for event in audit] == ["agent:registered", *(f"agent:{event}" for event in CYCLE)]
        assert [event.op_id for event in audit[1:]] == op_ids
        assert [event.data for event in audit[1:]] == [{"note": event} for event in CYCLE]
        assert [event.after["version"] for event in audit if event.after] == [1, 2, 3, 4, 5]
        assert all(later.before == earlier.after for earlier, later in pairwise(audit))

    def test_a_changed_version_is_a_conflict_though_the_state_is_the_same_again(self, kit: AgentKit) -> None:
        version = kit.register().version
        for event in CYCLE:
            kit.apply(event)
        assert kit.agents.get("a1").state == "idle", "the state is back where it was: ABA"
        with pytest.raises(StateConflictError) as caught:
            kit.apply("task_assigned", task_id="t2", expected_version=version)
        assert (caught.value.expected, caught.value.actual) == (1, 5)

    def test_a_version_ahead_is_early_and_can_be_repeated_later_with_the_same_op_id(self, kit: AgentKit) -> None:
        kit.register()
        early = request("work_started", expected_version=2)
        with pytest.raises(EarlyEventError):
            kit.agents.apply_event(early)
        kit.apply("task_assigned", expected_version=1)
        assert kit.agents.apply_event(early).record.state == "working"

    def test_an_unexpected_state_is_a_conflict(self, kit: AgentKit) -> None:
        kit.register()
        with pytest.raises(StateConflictError):
            kit.apply("agent_failed", expected_state="working")

    def test_events_with_an_old_epoch_are_refused_and_audited(self, kit: AgentKit) -> None:
        old = kit.register().epoch
        kit.apply("task_assigned")
        new = kit.register().epoch
        assert new > old
        with pytest.raises(LeaseLostError):
            kit.apply("work_started", epoch=old, task_id="t1")
        refusal = kit.events()[-1]
        assert (refusal.kind, refusal.data["code"]) == ("agent:refused", "LEASE_LOST")
        assert kit.agents.get("a1").state == "idle"

    def test_events_with_a_foreign_task_are_refused(self, kit: AgentKit) -> None:
        epoch = kit.register().epoch
        kit.apply("task_assigned", task_id="t1")
        with pytest.raises(LeaseLostError):
            kit.apply("work_started", epoch=epoch, task_id="t2")
        assert kit.apply("work_started", epoch=epoch, task_id="t1").state == "working"

    def test_a_task_has_one_holder(self, kit: AgentKit) -> None:
        kit.register("a1")
        kit.register("a2")
        kit.apply("task_assigned", "a1", task_id="t1")
        with pytest.raises(TaskTakenError):
            kit.apply("task_assigned", "a2", task_id="t1")
        assert kit.agents.get("a2").state == "idle"

    def test_an_ended_task_is_not_assigned_again(self, kit: AgentKit) -> None:
        kit.register()
        for event in CYCLE:
            kit.apply(event)
        with pytest.raises(TaskExistsError):
            kit.apply("task_assigned", task_id="t1")

    def test_a_failed_agents_task_goes_back_and_fails_after_its_attempts(self, kit: AgentKit) -> None:
        kit.register()
        for attempt in (1, 2, 3):
            kit.apply("task_assigned", task_id="t1", priority=4)
            assert kit.claims.get("t1").attempts == attempt
            kit.apply("agent_failed")
        assert kit.claims.get("t1").status == "failed"
        assert kit.agents.get("a1").state == "idle"

    def test_draining_lets_the_work_end_and_then_stops(self, kit: AgentKit) -> None:
        kit.register()
        for event in CYCLE[:2]:
            kit.apply(event)
        assert kit.apply("drain_requested").state == "draining"
        assert kit.apply("output_delivered").state == "stopped"
        assert kit.claims.get("t1").status == "completed"

    # Repeats.

    def test_a_repeated_op_id_gets_the_first_answer_and_changes_nothing(self, kit: AgentKit) -> None:
        kit.register()
        first = request("task_assigned")
        answered = kit.agents.apply_event(first).record
        kit.apply("work_started")
        repeated = kit.agents.apply_event(first).record
        assert (repeated.state, repeated.version) == (answered.state, answered.version) == ("assigned", 2)
        assert kit.agents.get("a1").version == 3

    def test_a_repeated_refusal_stays_a_refusal_even_if_it_would_be_valid_by_now(self, kit: AgentKit) -> None:
        kit.register()
        refused = request("work_started")
        with pytest.raises(InvalidTransitionError):
            kit.agents.apply_event(refused)
        kit.apply("task_assigned")
        with pytest.raises(InvalidTransitionError):
            kit.agents.apply_event(refused)
        assert kit.agents.get("a1").state == "assigned"

    def test_repeats_are_known_for_the_last_32_operations_and_memory_stays_bounded(self, kit: AgentKit) -> None:
        kit.register()
        requests = [request("agent_failed") for _ in range(200)]
        for each in requests:
            kit.agents.apply_event(each)
        for each in requests[-32:]:
            assert kit.agents.apply_event(each).record.version == requests.index(each) + 2
        assert kit.agents.get("a1").version == 201

    def test_register_cas_and_clear_repeat_their_first_answer(self, kit: AgentKit) -> None:
        op_id = new_op_id()
        first = kit.agents.register("a1", ["gpu"], "{}", op_id).record
        assert kit.agents.register("a1", ["gpu"], "{}", op_id).record == first
        op_id = new_op_id()
        swapped = kit.agents.compare_and_set("a1", "idle", "assigned", op_id).record
        assert kit.agents.compare_and_set("a1", "idle", "assigned", op_id).record == swapped
        op_id = new_op_id()
        cleared = kit.agents.clear_current_task("a1", op_id).record
        assert kit.agents.clear_current_task("a1", op_id).record == cleared
        assert kit.agents.get("a1").version == 3

    # Batches.

    def test_a_batch_is_applied_in_order_with_an_outcome_each(self, kit: AgentKit) -> None:
        kit.register("a1")
        kit.register("a2")
        requests = [
            request("task_assigned", "a1", task_id="t1"),
            request("work_started", "a2"),
            request("work_started", "a1"),
            request("output_ready", "ghost"),
            request("output_ready", "a1"),
        ]
        outcomes = kit.agents.apply_events(requests).outcomes
        assert [outcome.code for outcome in outcomes] == ["APPLIED", "INVALID", "APPLIED", "NOT_FOUND", "APPLIED"]
        assert [outcome.request for outcome in outcomes] == requests
        assert kit.agents.get("a1").state == "reporting"
        assert kit.agents.get("a2").state == "idle"

    def test_a_repeated_batch_changes_nothing(self, kit: AgentKit) -> None:
        kit.register()
        requests = [request(event) for event in CYCLE]
        first = kit.agents.apply_events(requests).outcomes
        assert kit.agents.apply_events(requests).outcomes == first
        assert kit.agents.get("a1").version == 5

    def test_an_op_id_twice_in_one_batch_counts_once(self, kit: AgentKit) -> None:
        kit.register()
        doubled = request("agent_failed")
        kit.agents.apply_events([doubled, doubled])
        assert kit.agents.get("a1").version == 2

    def test_256_events_of_one_agent_fit_into_one_batch(self, kit: AgentKit) -> None:
        kit.register()
        kit.agents.apply_events([request("agent_failed") for _ in range(256)])
        assert kit.agents.get("a1").version == 257

    def test_ten_writers_of_one_event_have_one_winner_and_typed_losers(self, kit: AgentKit) -> None:
        kit.register()
        outcomes = race(10, lambda number: kit.apply("task_assigned", task_id=f"t{number}"))
        assert outcomes == {"ok": 1, "InvalidTransitionError": 9}

    def test_the_two_step_machine_has_one_winner_too(self, kit: AgentKit) -> None:
        kit.register()
        machine = Machine(kit.agents)
        outcomes = race(10, lambda _: machine.apply_event("a1", "task_assigned"))
        assert outcomes["ok"] == 1
        assert set(outcomes) <= {"ok", "StateConflictError", "InvalidTransitionError"}
        assert sum(outcomes.values()) == 10

    # Registration.

    def test_a_new_agent_is_idle_with_what_it_declared(self, kit: AgentKit) -> None:
        record = kit.agents.register("a1", ["python", "gpu", "gpu"], '{"host":"h1","n":[]}', new_op_id()).record
        assert (record.state, record.version, record.capabilities) == ("idle", 1, ("gpu", "python"))
        assert record.metadata == {"host": "h1", "n": []}
        assert record.heartbeat_at == record.registered_at

    def test_registering_again_raises_the_epoch_and_puts_the_task_back(self, kit: AgentKit) -> None:
        first = kit.register()
        kit.claims.enqueue("t1", 3, (), 3, new_op_id())
        place = kit.claims.get("t1").place
        kit.apply("task_assigned", task_id="t1")
        again = kit.agents.register("a1", ["gpu"], '{"v":2}', new_op_id()).record
        assert again.epoch > first.epoch
        assert (again.state, again.capabilities, again.metadata) == ("idle", ("gpu",), {"v": 2})
        task = kit.claims.get("t1")
        assert (task.status, task.priority, task.place) == ("queued", 3, place)

    def test_an_epoch_never_comes_back_not_even_after_deregistering(self, kit: AgentKit) -> None:
        epochs = [kit.register().epoch]
        for _ in range(3):
            epochs.append(kit.register().epoch)
        kit.agents.deregister("a1", new_op_id())
        epochs.append(kit.register().epoch)
        assert epochs == sorted(set(epochs)), "epochs only rise"

    def test_deregistering_removes_the_agent_and_puts_its_task_back_uncounted(self, kit: AgentKit) -> None:
        kit.register()
        kit.apply("task_assigned", task_id="t1")
        op_id = new_op_id()
        kit.agents.deregister("a1", op_id)
        kit.agents.deregister("a1", op_id)
        with pytest.raises(AgentNotFoundError):
            kit.agents.get("a1")
        with pytest.raises(AgentNotFoundError):
            kit.agents.deregister("a1", new_op_id())
        task = kit.claims.get("t1")
        assert (task.status, task.attempts) == ("queued", 0)
        assert kit.kinds()[-1] == "agent:deregistered"

    def test_clearing_the_task_is_atomic_and_keeps_the_state(self, kit: AgentKit) -> None:
        kit.register()
        kit.apply("task_assigned", task_id="t1", priority=5)
        record = kit.agents.clear_current_task("a1", new_op_id()).record
        assert (record.state, record.current_task_id, record.current_task_priority) == ("assigned", None, 0)
        assert kit.claims.get("t1").status == "queued", "the task is not forgotten with it"

    def test_clearing_the_task_of_an_unknown_agent_is_not_found(self, kit: AgentKit) -> None:
        with pytest.raises(AgentNotFoundError):
            kit.agents.clear_current_task("ghost", new_op_id())
        assert kit.agents.list("", 10) == []

    def test_listing_pages_by_id(self, kit: AgentKit) -> None:
        for number in range(7):
            kit.register(f"a{number}")
        first = [record.agent_id for record in kit.agents.list("", 4)]
        rest = [record.agent_id for record in kit.agents.list(first[-1], 4)]
        assert first + rest == [f"a{number}" for number in range(7)]

    # Inboxes.

    def test_sent_events_are_applied_in_order(self, kit: AgentKit) -> None:
        kit.register()
        for event in CYCLE:
            kit.inbox.append([request(event)])
        drained = kit.inbox.drain("a1", 256)
        assert [outcome.request.event for outcome in drained.outcomes] == list(CYCLE)
        assert {outcome.code for outcome in drained.outcomes} == {OutcomeCode.APPLIED}
        assert (drained.waiting, kit.agents.get("a1").version) == (0, 5)

    def test_only_the_first_event_of_an_empty_inbox_must_ring(self, kit: AgentKit) -> None:
        kit.register()
        assert kit.inbox.append([request("task_assigned")]) == ["a1"]
        assert kit.inbox.append([request("work_started")]) == []
        kit.inbox.drain("a1", 256)
        assert kit.inbox.append([request("output_ready")]) == ["a1"]

    def test_a_repeated_send_is_stored_once(self, kit: AgentKit) -> None:
        kit.register()
        sent = request("agent_failed")
        kit.inbox.append([sent])
        kit.inbox.append([sent])
        assert len(kit.inbox.drain("a1", 256).outcomes) == 1
        kit.inbox.append([sent])
        assert kit.inbox.drain("a1", 256).outcomes == ()
        assert kit.agents.get("a1").version == 2

    def test_a_drain_takes_no_more_than_asked(self, kit: AgentKit) -> None:
        kit.register()
        kit.inbox.append([request("agent_failed") for _ in range(10)])
        assert kit.inbox.drain("a1", 4).waiting == 6
        assert kit.inbox.drain("a1", 256).waiting == 0
        assert kit.agents.get("a1").version == 11

    def test_a_full_inbox_refuses_all_of_a_batch(self, kit: AgentKit) -> None:
        kit.register()
        kit.inbox.append([request("agent_failed") for _ in range(INBOX_LIMIT - 1)])
        with pytest.raises(LimitExceededError) as caught:
            kit.inbox.append([request("agent_failed"), request("agent_failed")])
        assert (caught.value.actual, caught.value.limit) == (INBOX_LIMIT + 1, INBOX_LIMIT)
        kit.inbox.append([request("agent_failed")])

    def test_an_event_for_an_unknown_agent_is_not_sent(self, kit: AgentKit) -> None:
        kit.register()
        with pytest.raises(AgentNotFoundError):
            kit.inbox.append([request("agent_failed"), request("agent_failed", "ghost")])
        assert kit.inbox.drain("a1", 256).outcomes == ()

    def test_a_refused_sent_event_is_audited_and_does_not_stop_the_next(self, kit: AgentKit) -> None:
        kit.register()
        kit.inbox.append([request("work_started"), request("task_assigned")])
        codes = [outcome.code for outcome in kit.inbox.drain("a1", 256).outcomes]
        assert codes == ["INVALID", "APPLIED"]
        assert kit.kinds() == ["agent:registered", "agent:refused", "agent:task_assigned"]

    def test_an_early_sent_event_waits_for_its_predecessor(self, kit: AgentKit) -> None:
        kit.register()
        kit.inbox.append([request("work_started", expected_version=2)])
        assert kit.inbox.drain("a1", 256).waiting == 1
        kit.inbox.append([request("task_assigned", expected_version=1)])
        kit.inbox.drain("a1", 256)
        kit.inbox.drain("a1", 256)
        assert kit.agents.get("a1").state == "working"

    def test_an_event_that_stays_early_is_refused_and_audited_in_the_end(self, kit: AgentKit) -> None:
        kit.register()
        kit.inbox.append([request("work_started", expected_version=9)])
        kit.inbox.drain("a1", 256)
        kit.advance(EARLY_WAIT_S + 1)
        drained = kit.inbox.drain("a1", 256)
        assert ([outcome.code for outcome in drained.outcomes], drained.waiting) == (["EARLY"], 0)
        assert kit.kinds()[-1] == "agent:refused"

    def test_a_waiting_inbox_is_due_once_per_interval(self, kit: AgentKit) -> None:
        kit.register()
        kit.inbox.append([request("agent_failed")])
        assert kit.inbox.due(2.0, 10) == []
        kit.advance(3)
        assert kit.inbox.due(2.0, 10) == ["a1"]
        assert kit.inbox.due(2.0, 10) == []
        kit.advance(3)
        assert kit.inbox.due(2.0, 10) == ["a1"]
        kit.inbox.drain("a1", 256)
        kit.advance(3)
        assert kit.inbox.due(2.0, 10) == []

    def test_two_workers_draining_one_inbox_apply_each_event_once(self, kit: AgentKit) -> None:
        kit.register()
        kit.inbox.append([request("agent_failed") for _ in range(200)])
        race(8, lambda _: [kit.inbox.drain("a1", 7) for _ in range(10)])
        assert kit.agents.get("a1").version == 201

    # Heartbeats.

    def test_a_heartbeat_is_noted(self, kit: AgentKit) -> None:
        record = kit.register()
        kit.advance(10)
        assert kit.heartbeats.beat([("a1", record.epoch)]) == []
        beaten = kit.agents.get("a1").heartbeat_at
        assert beaten is not None
        assert record.heartbeat_at is not None
        assert (beaten - record.heartbeat_at).total_seconds() >= 9

    def test_a_heartbeat_with_an_old_epoch_is_refused_and_audited(self, kit: AgentKit) -> None:
        old = kit.register().epoch
        kit.register()
        (refused,) = kit.heartbeats.beat([("a1", old)])
        assert isinstance(refused.error(), LeaseLostError)
        assert kit.kinds()[-1] == "agent:refused"

    def test_a_batch_of_heartbeats_refuses_only_the_wrong_ones(self, kit: AgentKit) -> None:
        epoch = kit.register("a1").epoch
        kit.register("a2")
        stopped = kit.register("a3")
        kit.apply("drain_requested", "a3")
        beats = [("a1", epoch), ("a2", 7), ("ghost", 7), ("a3", stopped.epoch)]
        codes = {outcome.request.agent_id: outcome.code for outcome in kit.heartbeats.beat(beats)}
        assert codes == {"a2": "LEASE_LOST", "ghost": "NOT_FOUND", "a3": "INVALID"}

    def test_a_silent_agent_is_suspected_once_then_lost_once(self, kit: AgentKit) -> None:
        kit.register()
        assert not any((kit.heartbeats.check(60, 100).suspected, kit.heartbeats.check(60, 100).lost))
        kit.advance(31)
        assert kit.heartbeats.check(60, 100).suspected == ("a1",)
        assert kit.heartbeats.check(60, 100).suspected == ()
        kit.advance(30)
        assert kit.heartbeats.check(60, 100).lost == ("a1",)
        assert kit.heartbeats.check(60, 100).lost == ()
        assert kit.kinds() == ["agent:registered", "agent:suspect", "agent:heartbeat_lost"]
        assert kit.agents.get("a1").state == "lost"

    def test_a_suspect_that_beats_again_is_not_lost(self, kit: AgentKit) -> None:
        epoch = kit.register().epoch
        kit.advance(31)
        kit.heartbeats.check(60, 100)
        kit.heartbeats.beat([("a1", epoch)])
        kit.advance(1)
        kit.heartbeats.check(60, 100)
        kit.advance(28)
        assert kit.heartbeats.check(60, 100).lost == ()
        assert kit.kinds() == ["agent:registered", "agent:suspect", "agent:recovered"]

    def test_a_lost_agents_task_goes_back_to_its_place_once_though_two_beats_check(self, kit: AgentKit) -> None:
        kit.register()
        for number, priority in enumerate((5, 5, 9)):
            kit.claims.enqueue(f"t{number}", priority, (), 3, new_op_id())
        place = kit.claims.get("t0").place
        kit.apply("task_assigned", task_id="t0")
        kit.advance(61)
        race(2, lambda _: kit.heartbeats.check(60, 100))
        task = kit.claims.get("t0")
        assert (task.status, task.priority, task.place, task.attempts) == ("queued", 5, place, 1)
        assert [event.kind for event in kit.events()].count("task:reclaimed") == 1
        order = [claimed.task_id for _ in range(3) if (claimed := kit.claims.claim_next("c", (), 60, new_op_id()))]
        assert order == ["t2", "t0", "t1"], "original priority and place"

    def test_the_agent_that_wakes_up_later_is_refused_by_its_epoch(self, kit: AgentKit) -> None:
        epoch = kit.register().epoch
        kit.apply("task_assigned", task_id="t1")
        kit.advance(61)
        kit.heartbeats.check(60, 100)
        with pytest.raises(LeaseLostError):
            kit.apply("work_started", epoch=epoch, task_id="t1")
        assert isinstance(kit.heartbeats.beat([("a1", epoch)])[0].error(), LeaseLostError)
        assert kit.register().state == "idle"

    # Supervisor.

    def test_assigning_takes_the_highest_priority_oldest_first(self, kit: AgentKit) -> None:
        for task_id, priority in (("low", 1), ("old", 5), ("young", 5)):
            kit.claims.enqueue(task_id, priority, (), 3, new_op_id())
        for number in range(3):
            kit.register(f"a{number}")
        given = [assigned.task_id for _ in range(3) if (assigned := kit.assign.assign_next(new_op_id()))]
        assert given == ["old", "young", "low"]
        assert kit.assign.assign_next(new_op_id()) is None

    def test_assigning_respects_capabilities_and_a_task_nobody_can_do_blocks_no_other(self, kit: AgentKit) -> None:
        for number in range(100):
            kit.claims.enqueue(f"gpu{number}", 9, ("gpu",), 3, new_op_id())
        kit.claims.enqueue("plain", 1, ("python",), 3, new_op_id())
        kit.register("a1", "python", "git")
        assigned = kit.assign.assign_next(new_op_id())
        assert assigned is not None
        assert (assigned.task_id, assigned.agent_id) == ("plain", "a1")
        assert kit.assign.assign_next(new_op_id()) is None

    def test_an_assignment_carries_the_leases_of_agent_and_task(self, kit: AgentKit) -> None:
        epoch = kit.register().epoch
        kit.claims.enqueue("t1", 4, (), 3, new_op_id())
        assigned = kit.assign.assign_next(new_op_id())
        assert assigned is not None
        record = kit.agents.get("a1")
        assert (record.state, record.current_task_id, record.current_task_priority) == ("assigned", "t1", 4)
        assert (assigned.epoch, assigned.fence, assigned.priority) == (epoch, kit.claims.get("t1").fence, 4)

    def test_a_repeated_assignment_is_the_first_one(self, kit: AgentKit) -> None:
        kit.register("a1")
        kit.register("a2")
        kit.claims.enqueue("t1", 0, (), 3, new_op_id())
        kit.claims.enqueue("t2", 0, (), 3, new_op_id())
        op_id = new_op_id()
        assert kit.assign.assign_next(op_id) == kit.assign.assign_next(op_id)
        assert kit.claims.depth() == 1

    def test_many_supervisors_give_each_task_to_one_agent(self, kit: AgentKit) -> None:
        for number in range(20):
            kit.register(f"a{number}")
            kit.claims.enqueue(f"t{number}", 0, (), 3, new_op_id())
        given: list[tuple[str, str]] = []

        def assign(_: int) -> None:
            while (assigned := kit.assign.assign_next(new_op_id())) is not None:
                given.append((assigned.task_id, assigned.agent_id))

        race(8, assign)
        assert len(given) == len({task for task, _ in given}) == len({agent for _, agent in given}) == 20

    def test_work_and_an_idle_agent_are_announced_to_the_supervisor(self, kit: AgentKit) -> None:
        kit.register()
        kit.apply("task_assigned", task_id="t1")
        kit.claims.enqueue("t2", 0, (), 3, new_op_id())
        assert not kit.agents.apply_event(request("work_started")).wake
        assert kit.agents.apply_event(request("agent_failed")).wake


def race(size: int, action: Callable[[int], object]) -> Counter[str]:
    """Run the action in that many threads at once: how often it went well, and how often each error came."""
    outcomes: Counter[str] = Counter()
    start = threading.Barrier(size)

    def run(number: int) -> str:
        start.wait()
        try:
            result = action(number)
        except StatecoreError as error:
            return type(error).__name__
        assert not isinstance(result, EventOutcome)
        return "ok"

    with ThreadPoolExecutor(size) as pool:
        outcomes.update(pool.map(run, range(size)))
    return outcomes
