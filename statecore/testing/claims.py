"""What every claim store promises, as tests: subclass a suite in your test module and give it your store."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Protocol

import pytest

from statecore.claims.model import DEFAULT_MAX_ATTEMPTS, Task, TaskStatus
from statecore.claims.store import ClaimStore
from statecore.errors import LeaseLostError, LimitExceededError, TaskExistsError, TaskNotFoundError
from statecore.ids import new_op_id

LEASE_S = 30.0
CLAIMERS = 16
CROWD = 500


class MakeStore(Protocol):
    """A new handle onto the test's queue; a test that names a limit makes only one."""

    def __call__(self, limit: int = 100_000) -> ClaimStore: ...


class ClaimStoreSuite:
    """The promises of one store. Override `make_store` and `advance`; each test has a queue of its own."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        raise NotImplementedError("give your store's MakeStore")

    @pytest.fixture
    def advance(self) -> Callable[[float], None]:
        """Moves the time that the store goes by, in seconds."""
        raise NotImplementedError("give a function that moves your store's time")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> ClaimStore:
        return make_store()

    def test_the_highest_priority_is_claimed_first(self, store: ClaimStore) -> None:
        for task_id, priority in (("low", 1), ("high", 9), ("middle", 5)):
            enqueue(store, task_id, priority)
        assert drained_ids(store) == ["high", "middle", "low"]

    def test_among_equals_the_oldest_is_claimed_first(self, store: ClaimStore) -> None:
        # Names that sort against their age: a store that ties by name fails here.
        for task_id in ("c", "b", "a", "e", "d"):
            enqueue(store, task_id, 3)
        assert drained_ids(store) == ["c", "b", "a", "e", "d"]

    def test_priorities_are_compared_as_numbers(self, store: ClaimStore) -> None:
        for task_id, priority in (("a", 9), ("b", -10), ("c", 1000), ("d", 10), ("e", -9), ("f", 0)):
            enqueue(store, task_id, priority)
        assert drained_ids(store) == ["c", "d", "a", "f", "e", "b"]

    def test_a_claimer_gets_only_what_it_is_able_to_do(self, store: ClaimStore) -> None:
        enqueue(store, "gpu-and-python", 9, ["python", "gpu"])
        enqueue(store, "gpu", 8, ["gpu"])
        enqueue(store, "anyone", 1)
        assert claim(store, "plain").task_id == "anyone"
        assert store.claim_next("plain", [], LEASE_S, new_op_id()) is None
        assert store.claim_next("pythonist", ["python"], LEASE_S, new_op_id()) is None
        assert claim(store, "able", ["gpu", "python", "rust"]).task_id == "gpu-and-python"
        assert claim(store, "gpu-only", ["gpu"]).task_id == "gpu"

    def test_a_task_for_others_does_not_hide_those_behind_it(self, store: ClaimStore) -> None:
        for number in range(40):
            enqueue(store, f"gpu-{number}", 9, ["gpu"])
        enqueue(store, "python", 5, ["python"])
        assert claim(store, "a1", ["python"]).task_id == "python"

    def test_an_empty_queue_gives_nothing(self, store: ClaimStore) -> None:
        assert store.claim_next("a1", [], LEASE_S, new_op_id()) is None
        assert store.depth() == 0

    def test_a_claim_shows_holder_time_and_fence(self, store: ClaimStore) -> None:
        queued = enqueue(store, "t1", 5, ["python"])
        assert (queued.status, queued.attempts) == (TaskStatus.QUEUED, 0)
        assert (queued.claimed_by, queued.claimed_at, queued.fence) == (None, None, None)
        task = claim(store, "a1", ["python"])
        assert (task.status, task.claimed_by, task.attempts) == (TaskStatus.CLAIMED, "a1", 1)
        assert task.claimed_at is not None
        assert task.claimed_at.tzinfo is not None
        assert (task.priority, task.place, task.capabilities) == (5, queued.place, ("python",))
        assert store.get("t1") == task

    def test_fences_only_rise(self, store: ClaimStore) -> None:
        for task_id in ("t1", "t2", "t3"):
            enqueue(store, task_id)
        fences = []
        for _ in range(4):
            task = claim(store)
            fences.append(fence_of(task))
            store.release(task.task_id, fence_of(task), new_op_id())
            fences.append(fence_of(claim(store)))
            enqueue(store, f"more-{len(fences)}")
        assert fences == sorted(set(fences)), f"a fence did not rise: {fences}"

    def test_a_handle_sees_what_another_wrote(self, make_store: MakeStore) -> None:
        enqueue(make_store(), "t1")
        task = claim(make_store())
        assert make_store().get("t1") == task
        make_store().complete("t1", fence_of(task), new_op_id())
        assert make_store().get("t1").status is TaskStatus.COMPLETED

    def test_a_completed_task_shows_who_completed_it(self, store: ClaimStore) -> None:
        enqueue(store, "t1")
        task = claim(store, "a1")
        done = store.complete("t1", fence_of(task), new_op_id())
        assert done.status is TaskStatus.COMPLETED
        assert (done.claimed_by, done.claimed_at, done.fence) == ("a1", task.claimed_at, task.fence)
        assert store.get("t1") == done
        assert store.claim_next("a2", [], LEASE_S, new_op_id()) is None

    def test_a_released_task_returns_to_its_original_place(self, store: ClaimStore) -> None:
        for task_id in ("first", "second", "third"):
            enqueue(store, task_id, 5)
        enqueue(store, "low", 1)
        task = claim(store)
        released = store.release("first", fence_of(task), new_op_id())
        assert (released.status, released.attempts, released.place) == (TaskStatus.QUEUED, 0, task.place)
        assert (released.claimed_by, released.claimed_at, released.fence) == (None, None, None)
        assert drained_ids(store) == ["first", "second", "third", "low"]

    @pytest.mark.parametrize("operation", ["renew", "complete", "release"])
    def test_an_old_fence_is_refused(self, store: ClaimStore, operation: str) -> None:
        enqueue(store, "t1")
        old = fence_of(claim(store, "a1"))
        store.release("t1", old, new_op_id())
        with pytest.raises(LeaseLostError) as of_queued:
            write(store, operation, "t1", old)
        assert (of_queued.value.presented, of_queued.value.current) == (str(old), "queued")
        now = claim(store, "a2")
        with pytest.raises(LeaseLostError) as of_claimed:
            write(store, operation, "t1", old)
        assert of_claimed.value.subject == "task t1"
        assert (of_claimed.value.presented, of_claimed.value.current) == (str(old), str(now.fence))
        assert store.get("t1") == now
        store.complete("t1", fence_of(now), new_op_id())
        with pytest.raises(LeaseLostError) as of_completed:
            write(store, operation, "t1", fence_of(now))
        assert of_completed.value.current == "completed"

    @pytest.mark.parametrize("operation", ["renew", "complete", "release"])
    def test_a_fence_not_yet_drawn_is_refused(self, store: ClaimStore, operation: str) -> None:
        enqueue(store, "t1")
        task = claim(store)
        with pytest.raises(LeaseLostError):
            write(store, operation, "t1", fence_of(task) + 1)
        assert store.get("t1") == task

    def test_an_unknown_task_is_said_to_be_unknown(self, store: ClaimStore) -> None:
        with pytest.raises(TaskNotFoundError):
            store.get("t1")
        for operation in ("renew", "complete", "release"):
            with pytest.raises(TaskNotFoundError):
                write(store, operation, "t1", 1)

    def test_an_equal_task_is_returned_as_it_is(self, store: ClaimStore) -> None:
        queued = enqueue(store, "t1", 5, ["python", "gpu"])
        assert enqueue(store, "t1", 5, ["gpu", "python", "gpu"]) == queued
        assert store.depth() == 1
        claimed = claim(store, "a1", ["python", "gpu"])
        assert enqueue(store, "t1", 5, ["python", "gpu"]) == claimed
        assert store.depth() == 0

    def test_an_id_with_other_properties_is_taken(self, store: ClaimStore) -> None:
        queued = enqueue(store, "t1", 5, ["python"])
        for priority, capabilities, attempts in ((6, ["python"], 3), (5, [], 3), (5, ["python"], 4)):
            with pytest.raises(TaskExistsError) as taken:
                store.enqueue("t1", priority, capabilities, attempts, new_op_id())
            assert (taken.value.task_id, taken.value.status) == ("t1", "queued")
        assert store.get("t1") == queued

    def test_an_ended_id_is_taken(self, store: ClaimStore) -> None:
        enqueue(store, "t1")
        store.complete("t1", fence_of(claim(store)), new_op_id())
        with pytest.raises(TaskExistsError) as taken:
            enqueue(store, "t1")
        assert (taken.value.task_id, taken.value.status) == ("t1", "completed")

    def test_a_repeated_enqueue_gets_its_first_answer(self, store: ClaimStore) -> None:
        queued = store.enqueue("t1", 5, ["python"], 3, "op-1")
        task = claim(store, "a1", ["python"])
        store.complete("t1", fence_of(task), new_op_id())
        assert store.enqueue("t1", 5, ["python"], 3, "op-1") == queued
        assert store.get("t1").status is TaskStatus.COMPLETED
        assert store.depth() == 0

    def test_a_repeated_claim_gets_the_same_task_and_no_second_one(self, store: ClaimStore) -> None:
        enqueue(store, "t1", 5)
        enqueue(store, "t2", 1)
        first = store.claim_next("a1", [], LEASE_S, "op-1")
        assert first is not None
        assert store.claim_next("a1", [], LEASE_S, "op-1") == first
        assert store.depth() == 1
        store.complete("t1", fence_of(first), new_op_id())
        assert store.claim_next("a1", [], LEASE_S, "op-1") == first
        assert store.get("t2").status is TaskStatus.QUEUED

    def test_a_claim_that_found_nothing_is_not_remembered(self, store: ClaimStore) -> None:
        assert store.claim_next("a1", [], LEASE_S, "op-1") is None
        enqueue(store, "t1")
        task = store.claim_next("a1", [], LEASE_S, "op-1")
        assert task is not None
        assert task.task_id == "t1"

    @pytest.mark.parametrize("operation", ["renew", "complete", "release"])
    def test_a_repeated_write_gets_its_first_answer(self, store: ClaimStore, operation: str) -> None:
        enqueue(store, "t1")
        task = claim(store, "a1")
        answer = write(store, operation, "t1", fence_of(task), "op-1")
        for _ in range(2):
            assert write(store, operation, "t1", fence_of(task), "op-1") == answer

    def test_a_repeated_release_does_not_take_the_task_from_its_next_holder(self, store: ClaimStore) -> None:
        enqueue(store, "t1")
        first = claim(store, "a1")
        answer = store.release("t1", fence_of(first), "op-1")
        second = claim(store, "a2")
        assert store.release("t1", fence_of(first), "op-1") == answer
        assert store.get("t1") == second

    def test_a_repeated_refusal_stays_the_same(self, store: ClaimStore) -> None:
        enqueue(store, "t1")
        old = fence_of(claim(store, "a1"))
        store.release("t1", old, new_op_id())
        with pytest.raises(LeaseLostError) as first:
            store.complete("t1", old, "op-1")
        claim(store, "a2")
        with pytest.raises(LeaseLostError) as again:
            store.complete("t1", old, "op-1")
        assert again.value.args == first.value.args

    def test_an_answer_outlives_31_later_operations_on_its_task(self, store: ClaimStore) -> None:
        enqueue(store, "t1")
        fence = fence_of(claim(store, "a1"))
        answer = store.release("t1", fence, "op-1")
        for _ in range(31):
            with pytest.raises(LeaseLostError):
                write(store, "renew", "t1", fence)
        assert store.release("t1", fence, "op-1") == answer

    def test_a_claim_outlives_31_later_claims_of_its_claimer(self, store: ClaimStore) -> None:
        for number in range(33):
            enqueue(store, f"t{number}")
        first = store.claim_next("a1", [], LEASE_S, "op-1")
        for _ in range(31):
            claim(store, "a1")
        assert store.claim_next("a1", [], LEASE_S, "op-1") == first
        assert store.depth() == 1

    def test_a_lease_that_ran_out_puts_the_task_back_in_its_place(
        self, store: ClaimStore, advance: Callable[[float], None]
    ) -> None:
        for task_id in ("first", "second", "third"):
            enqueue(store, task_id, 5)
        late = claim(store, "a1", lease_s=10)
        advance(9)
        assert store.reclaim_stale(100) == []
        advance(2)
        (reclaimed,) = store.reclaim_stale(100)
        assert (reclaimed.task_id, reclaimed.status, reclaimed.attempts) == ("first", TaskStatus.QUEUED, 1)
        assert (reclaimed.claimed_by, reclaimed.claimed_at, reclaimed.fence) == (None, None, None)
        assert store.reclaim_stale(100) == []
        with pytest.raises(LeaseLostError):
            store.complete("first", fence_of(late), new_op_id())
        assert drained_ids(store) == ["first", "second", "third"]
        assert store.get("first").attempts == 2

    def test_a_late_write_counts_until_the_lease_is_reclaimed(
        self, store: ClaimStore, advance: Callable[[float], None]
    ) -> None:
        enqueue(store, "t1")
        task = claim(store, "a1", lease_s=10)
        advance(60)
        assert store.complete("t1", fence_of(task), new_op_id()).status is TaskStatus.COMPLETED
        assert store.reclaim_stale(100) == []

    def test_reclaiming_stops_at_its_limit_and_begins_with_the_longest_overdue(
        self, store: ClaimStore, advance: Callable[[float], None]
    ) -> None:
        for number in range(5):
            enqueue(store, f"t{number}")
            claim(store, "a1", lease_s=50 - number)
        advance(100)
        assert [task.task_id for task in store.reclaim_stale(2)] == ["t4", "t3"]
        assert [task.task_id for task in store.reclaim_stale(100)] == ["t2", "t1", "t0"]
        assert store.depth() == 5

    def test_a_task_fails_when_its_attempts_are_used_up(
        self, store: ClaimStore, advance: Callable[[float], None]
    ) -> None:
        store.enqueue("t1", 5, [], 2, new_op_id())
        for _ in range(2):
            task = claim(store, "a1", lease_s=10)
            advance(11)
            (reclaimed,) = store.reclaim_stale(100)
        assert (reclaimed.status, reclaimed.attempts) == (TaskStatus.FAILED, 2)
        assert (reclaimed.claimed_by, reclaimed.claimed_at, reclaimed.fence) == (None, None, None)
        assert store.get("t1") == reclaimed
        assert store.claim_next("a1", [], LEASE_S, new_op_id()) is None
        with pytest.raises(LeaseLostError) as late:
            store.complete("t1", fence_of(task), new_op_id())
        assert late.value.current == "failed"
        with pytest.raises(TaskExistsError):
            store.enqueue("t1", 5, [], 2, new_op_id())

    def test_released_attempts_do_not_count(self, store: ClaimStore) -> None:
        store.enqueue("t1", 5, [], 1, new_op_id())
        for _ in range(3):
            task = claim(store)
            assert task.attempts == 1
            store.release("t1", fence_of(task), new_op_id())
        assert store.get("t1").status is TaskStatus.QUEUED

    def test_a_renewed_lease_holds(self, store: ClaimStore, advance: Callable[[float], None]) -> None:
        enqueue(store, "t1")
        task = claim(store, "a1", lease_s=10)
        for _ in range(3):
            advance(8)
            assert store.renew("t1", fence_of(task), 10, new_op_id()) == task
            assert store.reclaim_stale(100) == []
        advance(10)
        assert [found.task_id for found in store.reclaim_stale(100)] == ["t1"]

    def test_depth_counts_the_tasks_that_wait(self, store: ClaimStore) -> None:
        for number in range(3):
            enqueue(store, f"t{number}", 5, ["gpu"] if number else [])
        assert store.depth() == 3
        task = claim(store)
        assert store.depth() == 2
        store.release(task.task_id, fence_of(task), new_op_id())
        assert store.depth() == 3
        task = claim(store)
        store.complete(task.task_id, fence_of(task), new_op_id())
        assert store.depth() == 2

    def test_a_full_queue_refuses_the_next_task_and_takes_back_the_old(self, make_store: MakeStore) -> None:
        store = make_store(limit=2)
        enqueue(store, "t1")
        first = enqueue(store, "t2")
        with pytest.raises(LimitExceededError) as full:
            enqueue(store, "t3")
        assert (full.value.actual, full.value.limit) == (3, 2)
        with pytest.raises(TaskNotFoundError):
            store.get("t3")
        assert enqueue(store, "t2") == first
        task = claim(store)
        enqueue(store, "t3")
        store.release(task.task_id, fence_of(task), new_op_id())
        assert store.depth() == 3, "a claimed task always has a way back"

    def test_sixteen_threads_claim_500_tasks_each_exactly_once(self, make_store: MakeStore) -> None:
        ranked = fill(make_store())
        start = threading.Barrier(CLAIMERS)

        def claim_all(number: int) -> list[Task]:
            start.wait(60)
            return drain(make_store(), f"claimer-{number}")

        with ThreadPoolExecutor(CLAIMERS) as threads:
            check_crowd(ranked, list(threads.map(claim_all, range(CLAIMERS))))


class SharedClaimStoreSuite(ClaimStoreSuite):
    """The promises of a store that processes share. Override `store_factory` too."""

    @pytest.fixture
    def store_factory(self) -> Callable[[], ClaimStore]:
        """Opens the test's queue from another process: it must survive pickling."""
        raise NotImplementedError("give a picklable function that opens your store")

    def test_sixteen_processes_claim_500_tasks_each_exactly_once(self, store_factory: Callable[[], ClaimStore]) -> None:
        ranked = fill(store_factory())
        spawn = multiprocessing.get_context("spawn")
        start = spawn.Barrier(CLAIMERS)
        crowd = []
        for number in range(CLAIMERS):
            receiver, sender = spawn.Pipe(duplex=False)
            process = spawn.Process(target=_report, args=(store_factory, f"claimer-{number}", start, sender))
            process.start()
            # Closed here, so that a process that died is an EOFError and not an endless wait.
            sender.close()
            crowd.append((process, receiver))
        try:
            check_crowd(ranked, [receiver.recv() for _, receiver in crowd])
        finally:
            for process, receiver in crowd:
                receiver.close()
                process.kill()
                process.join()


def _report(store_factory: Callable[[], ClaimStore], claimer: str, start: Barrier, sender: Connection) -> None:
    store = store_factory()
    start.wait(60)
    sender.send(drain(store, claimer))


def enqueue(store: ClaimStore, task_id: str, priority: int = 5, capabilities: Iterable[str] = ()) -> Task:
    return store.enqueue(task_id, priority, list(capabilities), DEFAULT_MAX_ATTEMPTS, new_op_id())


def claim(store: ClaimStore, claimer: str = "a1", capabilities: Iterable[str] = (), lease_s: float = LEASE_S) -> Task:
    task = store.claim_next(claimer, list(capabilities), lease_s, new_op_id())
    assert task is not None, f"{claimer} found nothing to claim"
    return task


def drain(store: ClaimStore, claimer: str = "a1") -> list[Task]:
    """Every task that this claimer gets until there is none."""
    tasks = []
    while (task := store.claim_next(claimer, [], LEASE_S, new_op_id())) is not None:
        tasks.append(task)
    return tasks


def drained_ids(store: ClaimStore) -> list[str]:
    return [task.task_id for task in drain(store)]


def write(store: ClaimStore, operation: str, task_id: str, fence: int, op_id: str | None = None) -> Task:
    """Renew, complete or release."""
    op_id = op_id or new_op_id()
    if operation == "renew":
        return store.renew(task_id, fence, LEASE_S, op_id)
    return store.complete(task_id, fence, op_id) if operation == "complete" else store.release(task_id, fence, op_id)


def fence_of(task: Task) -> int:
    assert task.fence is not None, f"{task.task_id} has no fence"
    return task.fence


def fill(store: ClaimStore) -> list[str]:
    """Queue the crowd's tasks; their ids in the order in which they must be claimed."""
    tasks = [enqueue(store, f"t{number}", priority=number * 7 % 10) for number in range(CROWD)]
    return [task.task_id for task in sorted(tasks, key=lambda task: (-task.priority, task.place))]


def check_crowd(ranked: list[str], claims: list[list[Task]]) -> None:
    """Each task exactly once, each claimer's in order, and all of them in order by their fences."""
    every = [task for own in claims for task in own]
    assert sorted(task.task_id for task in every) == sorted(ranked), "a task was lost or claimed twice"
    rank = {task_id: number for number, task_id in enumerate(ranked)}
    for own in claims:
        ranks = [rank[task.task_id] for task in own]
        assert ranks == sorted(ranks), f"{own[0].claimed_by} claimed out of order: {ranks}"
    by_fence = [task.task_id for task in sorted(every, key=fence_of)]
    assert by_fence == ranked, "the claims as a whole are out of order"
