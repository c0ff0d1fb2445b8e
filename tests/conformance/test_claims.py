"""The claim stores, held to one suite; then what is the file store's and the memory store's own."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statecore.backends.embedded import ServerUrls
from statecore.claims import document
from statecore.claims.file_store import FileClaimStore
from statecore.claims.ledger import Ledger
from statecore.claims.memory_store import AsyncClaimStore, MemoryClaimStore
from statecore.claims.model import TaskStatus
from statecore.claims.redis_store import RedisClaimStore
from statecore.claims.store import ClaimStore
from statecore.clock import ManualClock
from statecore.errors import (
    CorruptDocumentError,
    LeaseLostError,
    SettingsError,
    StoreUnavailableError,
    TaskNotFoundError,
)
from statecore.testing.claims import ClaimStoreSuite, MakeStore, SharedClaimStoreSuite, claim, enqueue, fence_of
from tests.conftest import MakeSpace
from tests.spaces import redis_claims

KILLS = 50


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestMemoryClaimStore(ClaimStoreSuite):
    @pytest.fixture
    def make_store(self, clock: ManualClock) -> MakeStore:
        def one_for_all(limit: int = 100_000) -> ClaimStore:
            return made.setdefault("store", MemoryClaimStore(clock, Ledger(limit)))

        made: dict[str, ClaimStore] = {}
        return one_for_all

    @pytest.fixture
    def advance(self, clock: ManualClock) -> Callable[[float], None]:
        return clock.advance


class TestFileClaimStore(SharedClaimStoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path, clock: ManualClock) -> MakeStore:
        return functools.partial(FileClaimStore, tmp_path / "tasks.json", clock)

    @pytest.fixture
    def advance(self, clock: ManualClock) -> Callable[[float], None]:
        return clock.advance

    @pytest.fixture
    def store_factory(self, tmp_path: Path) -> Callable[[], ClaimStore]:
        return functools.partial(FileClaimStore, tmp_path / "tasks.json")


class RedisClaims(SharedClaimStoreSuite):
    """The suite on a Redis that `redis_url` names."""

    @pytest.fixture
    def make_store(self, redis_url: str, namespace: str, clock: ManualClock, make_space: MakeSpace) -> MakeStore:
        def make(limit: int = 100_000) -> ClaimStore:
            return RedisClaimStore(make_space(redis_url, namespace, clock), limit=limit)

        return make

    @pytest.fixture
    def advance(self, clock: ManualClock) -> Callable[[float], None]:
        return clock.advance

    @pytest.fixture
    def store_factory(self, redis_url: str, urls: ServerUrls, namespace: str) -> Callable[[], ClaimStore]:
        return functools.partial(redis_claims, redis_url, urls.database_url, namespace)


class TestRedisClaimStore(RedisClaims):
    @pytest.fixture
    def redis_url(self, urls: ServerUrls) -> str:
        return urls.redis_url


class TestRedisClusterClaimStore(RedisClaims):
    @pytest.fixture
    def redis_url(self, cluster_url: str) -> str:
        return cluster_url


class TestTheFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "tasks.json"

    @pytest.fixture
    def store(self, path: Path) -> FileClaimStore:
        return FileClaimStore(path)

    def test_every_change_is_audited_in_the_same_file(self, store: FileClaimStore) -> None:
        enqueue(store, "t1")
        fence = fence_of(claim(store, "a1"))
        store.renew("t1", fence, 30, "op-renew")
        for _ in range(2):
            with pytest.raises(LeaseLostError):
                store.complete("t1", fence - 1, "op-refused")
        store.release("t1", fence, "op-release")
        assert [(event.kind, event.subject) for event in store.events()] == [
            ("task:queued", "t1"),
            ("task:claimed", "t1"),
            ("task:refused", "t1"),
            ("task:released", "t1"),
        ]
        claimed, refused = store.events()[1:3]
        assert claimed.before == {"status": "queued", "fence": None, "claimed_by": None}
        assert claimed.after == {"status": "claimed", "fence": fence, "claimed_by": "a1"}
        assert refused.data == {
            "operation": "complete",
            "presented": str(fence - 1),
            "current": str(fence),
        }

    def test_only_the_last_events_are_kept(self, store: FileClaimStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(document, "EVENTS_KEPT", 10)
        for number in range(25):
            enqueue(store, f"t{number}")
        assert [event.id for event in store.events()] == [str(number) for number in range(16, 26)]

    def test_finding_nothing_writes_nothing(self, store: FileClaimStore, path: Path) -> None:
        enqueue(store, "t1", capabilities=["gpu"])
        before = path.stat()
        assert store.claim_next("a1", [], 30, "op-1") is None
        assert store.reclaim_stale(10) == []
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"\xff\xfe\x00",
            b"[]",
            b'{"tasks": []}',
            b'{"schema":2,"fence":0,"places":0,"last_event":0,"tasks":[\n\n],"grants":[\n\n],"events":[\n\n]}\n',
            b'{"schema":1,"fence":0,"places":0,"last_event":0,"tasks":[\n{"task_id":"t1"}\n],"grants":[\n\n]'
            b',"events":[\n\n]}\n',
        ],
    )
    def test_a_corrupt_or_foreign_file_is_left_as_it_is(
        self, store: FileClaimStore, path: Path, content: bytes
    ) -> None:
        path.write_bytes(content)
        for use in (
            lambda: enqueue(store, "t1"),
            lambda: claim(store),
            lambda: store.get("t1"),
            store.depth,
            store.events,
        ):
            with pytest.raises(CorruptDocumentError, match=str(path)):
                use()
        assert path.read_bytes() == content

    def test_a_file_that_was_cut_off_is_corrupt(self, store: FileClaimStore, path: Path) -> None:
        enqueue(store, "t1")
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(CorruptDocumentError):
                store.get("t1")
        path.write_bytes(whole)
        assert store.get("t1").task_id == "t1"

    def test_a_missing_folder_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="does not exist; create it"):
            FileClaimStore(tmp_path / "nowhere" / "tasks.json")

    def test_a_file_that_cannot_be_written_changes_nothing(
        self, store: FileClaimStore, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enqueue(store, "t1")

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreUnavailableError, match="No space left"):
                claim(store)
        assert store.get("t1").status is TaskStatus.QUEUED
        assert claim(store).task_id == "t1"
        assert not list(path.parent.glob("*.tmp")), "the next writer sweeps what the failed one left"

    def test_the_fences_of_a_deleted_file_stay_old(self, path: Path, clock: ManualClock) -> None:
        store = FileClaimStore(path, clock)
        enqueue(store, "t1")
        old = fence_of(claim(store))
        path.unlink()
        clock.advance(1)
        enqueue(store, "t1")
        assert fence_of(claim(store)) > old

    def test_a_claim_that_another_overwrote_is_not_kept(
        self, store: FileClaimStore, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A writer that no lock kept out puts its own document over ours, with our task as its own."""
        for task_id in ("t1", "t2"):
            enqueue(store, task_id)
        rival = path.with_name("rival.json")
        shutil.copy(path, rival)
        assert claim(FileClaimStore(rival), "rival").task_id == "t1"
        replace = os.replace

        def replace_and_lose(source: str, target: Path) -> None:
            replace(source, target)
            if rival.exists():
                replace(rival, target)

        monkeypatch.setattr(os, "replace", replace_and_lose)
        assert claim(store, "a1").task_id == "t2"
        assert store.get("t1").claimed_by == "rival"

    def test_claims_that_are_always_overwritten_end_in_an_error(
        self, store: FileClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enqueue(store, "t1")
        monkeypatch.setattr(os, "replace", lambda *_: None)
        with pytest.raises(StoreUnavailableError, match="overwritten by others"):
            claim(store)


CLAIMING = """
import os, random, sys
from statecore.claims.file_store import FileClaimStore
from statecore.ids import new_op_id

def claim_forever(seed):
    store, chance = FileClaimStore(sys.argv[1]), random.Random(seed)
    print(os.getpid(), flush=True)
    while True:
        task = store.claim_next("crashing", (), 300, new_op_id())
        if task is None:
            store.enqueue(new_op_id(), chance.randrange(10), (), 3, new_op_id())
        elif chance.random() < 0.5:
            store.complete(task.task_id, task.fence, new_op_id())
        elif chance.random() < 0.5:
            store.release(task.task_id, task.fence, new_op_id())

for seed in sys.stdin:
    child = os.fork()
    if child == 0:
        claim_forever(seed)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class TestACrashedClaimer:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "tasks.json"

    @pytest.fixture
    def crash(self, path: Path) -> Iterator[Callable[[int, float], None]]:
        """Starts a process that claims in a loop, and kills it so many seconds later."""
        # Forked from a process that has imported all: 50 interpreters would take longer than the 50 kills.
        command = [sys.executable, "-c", CLAIMING, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forker:
            orders, reports = forker.stdin, forker.stdout
            assert orders is not None
            assert reports is not None

            def run(seed: int, after_s: float) -> None:
                print(seed, file=orders, flush=True)
                claimer = int(reports.readline())
                time.sleep(after_s)
                os.kill(claimer, signal.SIGKILL)
                assert reports.readline() == "gone\n"

            yield run

    def test_corrupts_nothing_in_50_kills(self, path: Path, crash: Callable[[int, float], None]) -> None:
        store = FileClaimStore(path)
        for number in range(100):
            enqueue(store, f"t{number}", number % 10)
        chance = random.Random(7)
        kills_mid_write = 0
        for kill in range(KILLS):
            crash(kill, chance.uniform(0.001, 0.030))
            kills_mid_write += bool(list(path.parent.glob("*.tmp")))
            audited = {event.subject: event.after for event in store.events()}
            for task_id, after in audited.items():
                task = store.get(task_id)
                found = {"status": task.status.value, "fence": task.fence, "claimed_by": task.claimed_by}
                assert found == after, f"after kill {kill} the audit and the state of {task_id} differ"
        assert kills_mid_write > 0, "no kill hit a write, so this run showed nothing"
        enqueue(store, "one-more", 1000)
        assert claim(store, "survivor").task_id == "one-more"
        assert not list(path.parent.glob("*.tmp")), "the next writer sweeps what the killed ones left"


class TestAsyncClaimStore:
    def test_coroutines_claim_each_task_exactly_once(self, clock: ManualClock) -> None:
        async def run() -> list[str]:
            store = AsyncClaimStore(MemoryClaimStore(clock))
            for number in range(50):
                await store.enqueue(f"t{number}", 5, (), 3, f"enqueue-{number}")

            async def claim_all(claimer: str) -> list[str]:
                claimed: list[str] = []
                while task := await store.claim_next(claimer, (), 30, f"{claimer}-{len(claimed)}"):
                    claimed.append(task.task_id)
                return claimed

            claims = await asyncio.gather(*(claim_all(f"a{number}") for number in range(8)))
            return [task_id for own in claims for task_id in own]

        assert sorted(asyncio.run(run())) == sorted(f"t{number}" for number in range(50))

    def test_every_operation_reaches_the_store(self, clock: ManualClock) -> None:
        async def run() -> None:
            store = AsyncClaimStore(MemoryClaimStore(clock))
            await store.enqueue("t1", 5, (), 3, "op-1")
            assert await store.depth() == 1
            task = await store.claim_next("a1", (), 30, "op-2")
            assert task is not None
            assert task.fence is not None
            assert await store.renew("t1", task.fence, 60, "op-3") == task
            assert (await store.release("t1", task.fence, "op-4")).status is TaskStatus.QUEUED
            again = await store.claim_next("a1", (), 30, "op-5")
            assert again is not None
            clock.advance(31)
            assert [found.task_id for found in await store.reclaim_stale(10)] == ["t1"]
            with pytest.raises(LeaseLostError):
                await store.complete("t1", again.fence or 0, "op-6")
            with pytest.raises(TaskNotFoundError):
                await store.get("t2")

        asyncio.run(run())
