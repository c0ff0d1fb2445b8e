"""The conformance suite of the runs' port: subclass `RunStoreSuite`, give it `make_store` and `advance`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from statecore.errors import IdempotencyError, RunNotFoundError
from statecore.ids import new_op_id
from statecore.runs.model import Outcome, OutcomeKind, Run, RunStatus, Submission
from statecore.runs.store import Lease, RunStore
from statecore.runs.transitions import RULES, TERMINAL, Verb
from statecore.testing.agents import race

RACES = 200
MakeStore = Callable[[], RunStore]

# How a run comes into each status, by the port alone.
PATHS: dict[RunStatus, tuple[str, ...]] = {
    RunStatus.QUEUED: (),
    RunStatus.RUNNING: ("claim",),
    RunStatus.CANCELLING: ("claim", "cancel"),
    RunStatus.SUCCEEDED: ("claim", "succeed"),
    RunStatus.FAILED: ("claim", "fail"),
    RunStatus.CANCELED: ("cancel",),
}


def submission(**changes: Any) -> Submission:
    """A run with an id of its own."""
    values = {"run_id": new_op_id(), "name": "review", "payload": '{"pr":3}', "op_id": new_op_id()} | changes
    return Submission(**values)


class Hands:
    """The port's verbs on one run, as its first executor would use them."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self.run_id = run_id

    def do(self, verb: str, lease: Lease | None = None, op_id: str | None = None) -> Outcome:
        store, run_id, op_id = self._store, self.run_id, op_id or new_op_id()
        lease = lease or Lease(1, "w1")
        match verb:
            case "claim":
                return store.claim(run_id, lease.executor, op_id)
            case "succeed":
                return store.succeed(run_id, lease, '{"ok":true}', op_id)
            case "fail":
                return store.fail(run_id, lease, '{"type":"Oops"}', op_id)
            case "retry":
                return store.retry(run_id, lease, '{"type":"Oops"}', 0.0, op_id)
            case "give_back":
                return store.give_back(run_id, lease, op_id)
            case "cancel":
                return store.cancel(run_id, "user", 10.0, op_id)
            case "confirm_canceled":
                return store.confirm_canceled(run_id, lease, op_id)
            case _:
                raise AssertionError(verb)


class RunStoreSuite(ABC):
    """What every store of runs promises."""

    @pytest.fixture
    @abstractmethod
    def make_store(self) -> MakeStore:
        """Gives handles onto the same runs."""

    @pytest.fixture
    @abstractmethod
    def advance(self) -> Callable[[float], None]:
        """Moves the store's time on."""

    @pytest.fixture
    def store(self, make_store: MakeStore) -> RunStore:
        return make_store()

    def submit(self, store: RunStore, **changes: Any) -> Hands:
        (run,) = store.submit([submission(**changes)], None)
        return Hands(store, run.run_id)

    def bring_to(self, store: RunStore, status: RunStatus, **changes: Any) -> Hands:
        hands = self.submit(store, **changes)
        for verb in PATHS[status]:
            assert hands.do(verb).applied
        assert store.get(hands.run_id).status is status
        return hands

    # Every status and every verb.

    @pytest.mark.parametrize("status", PATHS)
    @pytest.mark.parametrize("verb", ["claim", "succeed", "fail", "retry", "give_back", "cancel", "confirm_canceled"])
    def test_each_verb_does_in_each_status_what_the_table_says(
        self, store: RunStore, status: RunStatus, verb: str
    ) -> None:
        hands = self.bring_to(store, status)
        before = store.get(hands.run_id)
        outcome = hands.do(verb)
        target = RULES[Verb(verb)].edges.get(status)
        allowed = target is not None and not (verb == "claim" and status is RunStatus.RUNNING)
        if allowed:
            assert (outcome.kind, outcome.run.status) == (OutcomeKind.APPLIED, target)
            assert store.events(hands.run_id)[-1].kind == RULES[Verb(verb)].event
        elif verb == "cancel" and status in (RunStatus.CANCELLING, RunStatus.CANCELED):
            assert outcome.kind is OutcomeKind.NOOP
        else:
            assert (outcome.kind, outcome.lost_to) == (OutcomeKind.LOST, status)
            assert store.get(hands.run_id) == before

    @pytest.mark.parametrize("status", [status for status in PATHS if status in TERMINAL])
    def test_terminal_is_terminal(self, store: RunStore, status: RunStatus, advance: Callable[[float], None]) -> None:
        hands = self.bring_to(store, status, run_timeout_s=5, queue_timeout_s=5)
        ended = store.get(hands.run_id)
        for verb in ("claim", "succeed", "fail", "retry", "give_back", "cancel", "confirm_canceled"):
            hands.do(verb)
        advance(1000)
        store.sweep(100)
        assert store.get(hands.run_id) == ended

    # Submitting.

    def test_a_submitted_run_waits_with_what_it_was_given(self, store: RunStore) -> None:
        hands = self.submit(store, priority=4, labels=("ci", "pr-3"), queue="slow", max_attempts=5, lease_s=30.0)
        run = store.get(hands.run_id)
        assert (run.status, run.attempt, run.payload) == (RunStatus.QUEUED, 0, {"pr": 3})
        assert (run.priority, run.labels, run.queue, run.max_attempts) == (4, ("ci", "pr-3"), "slow", 5)
        assert [event.kind for event in store.events(hands.run_id)] == ["run:submitted"]

    def test_many_runs_are_submitted_in_order(self, store: RunStore) -> None:
        wanted = [submission(payload=json.dumps({"n": number})) for number in range(50)]
        runs = store.submit(wanted, None)
        assert [run.run_id for run in runs] == [one.run_id for one in wanted]
        assert [run.payload["n"] for run in runs] == list(range(50))

    def test_the_same_key_and_payload_is_the_same_run(self, store: RunStore) -> None:
        first, again = (submission(idempotency_key="pr-3") for _ in range(2))
        assert store.submit([first], None) == store.submit([again], None)
        assert len(store.list(None, None, None, 10)) == 1

    def test_the_same_key_with_another_payload_is_refused_and_nothing_is_written(self, store: RunStore) -> None:
        store.submit([submission(idempotency_key="pr-3")], None)
        other = [submission(), submission(idempotency_key="pr-3", payload='{"pr":4}')]
        with pytest.raises(IdempotencyError):
            store.submit(other, None)
        assert len(store.list(None, None, None, 10)) == 1

    def test_ten_submissions_of_one_key_make_one_run(self, make_store: MakeStore) -> None:
        stores = [make_store() for _ in range(10)]
        ids: set[str] = set()
        race(10, lambda n: ids.add(stores[n].submit([submission(idempotency_key="k")], None)[0].run_id))
        assert len(ids) == 1

    def test_a_full_queue_rejects_and_says_so(self, store: RunStore) -> None:
        for _ in range(3):
            store.submit([submission()], 3)
        (rejected,) = store.submit([submission()], 3)
        assert rejected.status is RunStatus.REJECTED
        assert rejected.finished_at is not None
        assert [event.kind for event in store.events(rejected.run_id)] == ["run:rejected"]
        assert store.submit([submission(queue="other")], 3)[0].status is RunStatus.QUEUED

    def test_a_scheduled_run_is_not_claimed_before_its_time(
        self, store: RunStore, advance: Callable[[float], None]
    ) -> None:
        now = store.get(self.submit(store).run_id).submitted_at
        hands = self.submit(store, start_at=now + timedelta(seconds=60))
        assert not hands.do("claim").applied
        advance(61)
        assert hands.do("claim").applied

    # Leases.

    def test_a_claim_gives_a_lease_and_the_first_attempt(self, store: RunStore) -> None:
        hands = self.submit(store, lease_s=30.0, run_timeout_s=100.0)
        run = hands.do("claim").run
        assert (run.executor, run.attempt) == ("w1", 1)
        assert run.started_at is not None
        assert run.lease_expires_at == run.started_at + timedelta(seconds=30)
        assert run.run_deadline == run.started_at + timedelta(seconds=100)

    def test_a_lease_that_runs_out_is_reclaimed_and_the_zombie_refused(
        self, store: RunStore, advance: Callable[[float], None]
    ) -> None:
        hands = self.bring_to(store, RunStatus.RUNNING, lease_s=30.0)
        advance(31)
        assert store.sweep(100).reclaimed == (hands.run_id,)
        assert store.sweep(100).reclaimed == ()
        run = store.get(hands.run_id)
        assert (run.status, run.attempt, run.executor) == (RunStatus.RUNNING, 2, None)
        assert hands.do("claim", Lease(2, "w2")).run.attempt == 2, "taking it up again does not raise it"
        late = hands.do("succeed")
        assert (late.kind, late.lost_to, late.fenced) == (OutcomeKind.LOST, RunStatus.RUNNING, True)
        assert store.events(hands.run_id)[-1].kind == "run:refused"
        assert hands.do("succeed", Lease(2, "w2")).applied
        assert store.get(hands.run_id).result == {"ok": True}

    def test_a_renewed_lease_is_not_reclaimed(self, store: RunStore, advance: Callable[[float], None]) -> None:
        hands = self.bring_to(store, RunStatus.RUNNING, lease_s=30.0)
        advance(20)
        leases = [(hands.run_id, Lease(1, "w1")), (hands.run_id, Lease(1, "w2")), ("nowhere", Lease(1, "w1"))]
        assert store.renew(leases) == {hands.run_id: RunStatus.RUNNING}
        advance(20)
        assert store.sweep(100).reclaimed == ()
        assert store.renew([(hands.run_id, Lease(2, "w1"))]) == {}

    def test_the_last_lease_that_runs_out_fails_the_run(
        self, store: RunStore, advance: Callable[[float], None]
    ) -> None:
        hands = self.bring_to(store, RunStatus.RUNNING, lease_s=30.0, max_attempts=2)
        advance(31)
        store.sweep(100)
        hands.do("claim", Lease(2, "w2"))
        advance(31)
        assert store.sweep(100).failed == (hands.run_id,)
        run = store.get(hands.run_id)
        assert (run.status, run.error["type"]) == (RunStatus.FAILED, "WorkerLost")

    def test_giving_back_counts_no_attempt_and_rings_at_once(self, store: RunStore) -> None:
        hands = self.bring_to(store, RunStatus.RUNNING)
        store.due_for_ring(10, 10)
        assert hands.do("give_back").applied
        run = store.get(hands.run_id)
        assert (run.status, run.attempt, run.executor) == (RunStatus.RUNNING, 1, None)
        assert [due.run_id for due in store.due_for_ring(10, 10)] == [hands.run_id]
        assert hands.do("claim", Lease(1, "w2")).run.attempt == 1
        assert hands.do("succeed").fenced, "the one who gave it back holds it no more"

    def test_a_failed_attempt_is_kept_and_the_next_one_waits(
        self, store: RunStore, advance: Callable[[float], None]
    ) -> None:
        hands = self.bring_to(store, RunStatus.RUNNING, max_attempts=2)
        store.retry(hands.run_id, Lease(1, "w1"), '{"type":"First"}', 20.0, new_op_id())
        assert not hands.do("claim", Lease(2, "w2")).applied
        advance(21)
        assert hands.do("claim", Lease(2, "w2")).applied
        last = store.retry(hands.run_id, Lease(2, "w2"), '{"type":"Second"}', 20.0, new_op_id())
        assert (last.applied, last.run.status) == (True, RunStatus.FAILED)
        assert (last.run.attempt_errors, last.run.error) == (({"type": "First"},), {"type": "Second"})

    # Ends.

    def test_a_cancel_that_nobody_confirms_ends_canceled(
        self, store: RunStore, advance: Callable[[float], None]
    ) -> None:
        hands = self.bring_to(store, RunStatus.CANCELLING)
        assert store.get(hands.run_id).cancel_reason == "user"
        assert store.renew([(hands.run_id, Lease(1, "w1"))]) == {hands.run_id: RunStatus.CANCELLING}
        advance(11)
        assert store.sweep(100).canceled == (hands.run_id,)
        assert store.get(hands.run_id).status is RunStatus.CANCELED

    def test_deadlines_of_queue_and_run_time_out(self, store: RunStore, advance: Callable[[float], None]) -> None:
        queued = self.submit(store, queue_timeout_s=5)
        running = self.bring_to(store, RunStatus.RUNNING, run_timeout_s=5)
        patient = self.bring_to(store, RunStatus.RUNNING, queue_timeout_s=5)
        advance(6)
        assert set(store.sweep(100).timed_out) == {queued.run_id, running.run_id}
        assert store.get(patient.run_id).status is RunStatus.RUNNING, "its queue time is over"

    def test_a_sweep_takes_no_more_than_asked(self, store: RunStore, advance: Callable[[float], None]) -> None:
        for _ in range(5):
            self.bring_to(store, RunStatus.RUNNING)
        advance(61)
        assert [len(store.sweep(2).reclaimed) for _ in range(4)] == [2, 2, 1, 0]

    def test_waiting_runs_are_rung_ever_more_seldom(self, store: RunStore, advance: Callable[[float], None]) -> None:
        hands = self.submit(store)
        rung = []
        for second in range(40):
            if store.due_for_ring(5, 10):
                rung.append(second)
            advance(1)
        assert rung == [0, 5, 15, 35]
        hands.do("claim")
        advance(100)
        assert store.due_for_ring(5, 10) == []

    # Repeats and races.

    @pytest.mark.parametrize("verb", ["claim", "succeed", "fail", "retry", "give_back", "cancel", "confirm_canceled"])
    def test_a_repeated_op_id_is_applied_once(self, store: RunStore, verb: str) -> None:
        start = {"claim": RunStatus.QUEUED, "confirm_canceled": RunStatus.CANCELLING}.get(verb, RunStatus.RUNNING)
        hands, op_id = self.bring_to(store, start), new_op_id()
        first = hands.do(verb, op_id=op_id)
        again = hands.do(verb, op_id=op_id)
        assert (first.applied, again.applied, again.repeated) == (True, True, True)
        assert again.run == first.run
        assert [event.op_id for event in store.events(hands.run_id)].count(op_id) == 1

    @pytest.mark.parametrize(
        ("one", "other", "start"),
        [
            ("cancel", "succeed", RunStatus.RUNNING),
            ("claim", "claim", RunStatus.QUEUED),
            ("claim", "cancel", RunStatus.QUEUED),
            ("succeed", "fail", RunStatus.RUNNING),
            ("confirm_canceled", "succeed", RunStatus.CANCELLING),
        ],
    )
    def test_of_two_that_race_the_table_decides_and_the_loser_is_told(
        self, make_store: MakeStore, one: str, other: str, start: RunStatus
    ) -> None:
        stores = [make_store(), make_store()]
        for _ in range(RACES):
            run_id = self.bring_to(stores[0], start).run_id
            outcomes: dict[int, Outcome] = {}

            def act(number: int, run_id: str = run_id, outcomes: dict[int, Outcome] = outcomes) -> None:
                outcomes[number] = Hands(stores[number], run_id).do((one, other)[number])

            race(2, act)
            self.judge(stores[0].get(run_id), list(outcomes.values()), {one, other})

    @pytest.mark.parametrize("kind", ["lease", "deadline"])
    def test_a_finish_that_races_a_sweep_wins_or_is_told(
        self, make_store: MakeStore, advance: Callable[[float], None], kind: str
    ) -> None:
        stores = [make_store(), make_store()]
        for _ in range(RACES):
            timeout = 60.0 if kind == "deadline" else None
            hands = self.bring_to(stores[0], RunStatus.RUNNING, run_timeout_s=timeout, lease_s=60.0)
            advance(61)
            outcomes: list[Outcome] = []

            def act(number: int, hands: Hands = hands, outcomes: list[Outcome] = outcomes) -> None:
                if number == 0:
                    stores[1].sweep(10)
                else:
                    outcomes.append(hands.do("succeed"))

            race(2, act)
            run, (outcome,) = stores[0].get(hands.run_id), outcomes
            if outcome.applied:
                assert run.status is RunStatus.SUCCEEDED
            else:
                assert (outcome.kind, outcome.lost_to) == (OutcomeKind.LOST, run.status)
                assert run.status is (RunStatus.TIMED_OUT if kind == "deadline" else RunStatus.RUNNING)

    def judge(self, run: Run, outcomes: list[Outcome], verbs: set[str]) -> None:
        """Exactly one winner, but a cancel and what follows it may both be accepted."""
        applied = [outcome for outcome in outcomes if outcome.applied]
        lost = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.LOST]
        both_fit = "cancel" in verbs and len(applied) == 2
        assert both_fit or (len(applied), len(lost)) == (1, 1), outcomes
        if both_fit:
            assert run.status in (RunStatus.SUCCEEDED, RunStatus.CANCELLING)
        else:
            assert lost[0].lost_to is run.status

    # Reading.

    def test_unknown_runs_are_not_found(self, store: RunStore) -> None:
        for verb in ("claim", "succeed", "fail", "retry", "give_back", "cancel", "confirm_canceled"):
            with pytest.raises(RunNotFoundError):
                Hands(store, "nowhere").do(verb)
        with pytest.raises(RunNotFoundError):
            store.get("nowhere")

    def test_listing_is_newest_first_by_status_label_and_time(
        self, store: RunStore, advance: Callable[[float], None]
    ) -> None:
        hands = []
        for number in range(4):
            hands.append(self.submit(store, labels=("even",) if number % 2 == 0 else ()))
            advance(1)
        hands[3].do("claim")
        newest = [run.run_id for run in store.list(None, None, None, 10)]
        assert newest == [each.run_id for each in reversed(hands)]
        assert [run.run_id for run in store.list(RunStatus.RUNNING, None, None, 10)] == [hands[3].run_id]
        assert [run.run_id for run in store.list(None, "even", None, 10)] == [hands[2].run_id, hands[0].run_id]
        before = store.get(hands[1].run_id).submitted_at
        assert [run.run_id for run in store.list(None, None, before, 10)] == [hands[0].run_id]

    def test_the_story_tells_every_change(self, store: RunStore) -> None:
        hands = self.bring_to(store, RunStatus.SUCCEEDED)
        story = store.events(hands.run_id)
        assert [event.kind for event in story] == ["run:submitted", "run:claimed", "run:succeeded"]
        assert [event.after["status"] for event in story if event.after] == ["queued", "running", "succeeded"]
        assert [event.before["status"] for event in story if event.before] == ["queued", "running"]
