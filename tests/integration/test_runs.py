"""Runs by the library and through a real worker: rung, claimed, finished, and taken up again after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from statecore import Settings, Statecore
from statecore.backends.embedded_redis import EmbeddedRedis
from statecore.errors import InvalidIdError, InvalidInputError, LimitExceededError, RejectedError, RunNotFoundError
from statecore.runs.model import OutcomeKind, RunStatus
from tests.servers import await_until

APP = """
import os, time
from celery import Celery
from workers import setup
from statecore import Statecore

app = setup(Celery("theirs", broker=os.environ["STATECORE_BROKER_URL"], set_as_current=False))

@app.task(name="review", queue="runs", ignore_result=True)
def review(run_id):
    with Statecore.connect() as sc:
        claim = sc.runs.claim(run_id, f"pid/{os.getpid()}")
        if claim is None:
            return
        while claim.run.payload.get("hang_first") and claim.attempt == 1:
            time.sleep(0.05)
        claim.succeed({"reviewed": claim.run.payload["pr"], "attempt": claim.attempt})
"""


@pytest.fixture
def own(settings: Settings) -> Iterator[Settings]:
    """A broker of the test's own."""
    with tempfile.TemporaryDirectory(prefix="sct-") as folder:
        broker = EmbeddedRedis(Path(folder))
        broker.start()
        yield settings.model_copy(update={"broker_url": broker.broker_url, "run_ring_after_s": 0.5})
        broker.stop()


StartWorker = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def start_worker(own: Settings, tmp_path: Path) -> Iterator[StartWorker]:
    (tmp_path / "theirs.py").write_text(textwrap.dedent(APP))
    names = ("redis_url", "broker_url", "database_url", "namespace")
    env = os.environ | {f"STATECORE_{name.upper()}": getattr(own, name) for name in names}
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "celery", "-A", "theirs", "worker", "-c", "2", "-n", f"w{len(started)}@%h"]
        with (tmp_path / f"worker{len(started)}.log").open("wb") as log:
            worker = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def test_a_submitted_run_is_executed_once_and_its_result_kept(own: Settings, start_worker: StartWorker) -> None:
    start_worker()
    with Statecore.connect(settings=own) as sc:
        runs = sc.runs.submit_many([{"name": "review", "payload": {"pr": number}} for number in range(20)])
        for number, run in enumerate(runs):
            ended = sc.runs.wait(run.run_id, 60)
            assert (ended.status, ended.result) == (RunStatus.SUCCEEDED, {"reviewed": number, "attempt": 1})
            kinds = [event.kind for event in sc.runs.events(run.run_id)]
            assert kinds == ["run:submitted", "run:claimed", "run:succeeded"]


def test_a_worker_killed_with_minus_nine_loses_nothing(own: Settings, start_worker: StartWorker) -> None:
    worker = start_worker()
    with Statecore.connect(settings=own) as sc:
        run = sc.runs.submit("review", {"pr": 3, "hang_first": True}, lease_s=1.0)
        await_until(lambda: sc.runs.get(run.run_id).status is RunStatus.RUNNING, "the run to be claimed", 60)
        os.killpg(worker.pid, signal.SIGKILL)
        start_worker()
        await_until(lambda: bool(sc.runs.sweep().reclaimed), "the lease to run out")

        def ended() -> bool:
            sc.runs.ring_waiting()
            return sc.runs.get(run.run_id).status is RunStatus.SUCCEEDED

        await_until(ended, "another worker to take it up", 60)
        kinds = [event.kind for event in sc.runs.events(run.run_id)]
        assert kinds == ["run:submitted", "run:claimed", "run:reclaimed", "run:claimed", "run:succeeded"]
        assert sc.runs.get(run.run_id).result == {"reviewed": 3, "attempt": 2}


def test_a_claim_is_a_lease_in_python(sc: Statecore) -> None:
    run = sc.runs.submit("review", {"pr": 3}, labels=["ci"], run_timeout_s=60)
    claim = sc.runs.claim(run.run_id, "host/1")
    assert claim is not None
    assert sc.runs.claim(run.run_id, "host/2") is None
    assert claim.renew() is RunStatus.RUNNING
    assert sc.runs.cancel(run.run_id, "not needed").applied
    assert claim.renew() is RunStatus.CANCELLING
    assert claim.confirm_canceled().applied
    assert claim.renew() is None
    late = claim.succeed({"too": "late"})
    assert (late.kind, late.lost_to) == (OutcomeKind.LOST, RunStatus.CANCELED)
    assert [each.run_id for each in sc.runs.list("canceled", "ci")] == [run.run_id]


def test_a_failed_attempt_goes_on_until_none_is_left(sc: Statecore) -> None:
    run = sc.runs.submit("review", max_attempts=2)
    for attempt in (1, 2):
        claim = sc.runs.claim(run.run_id, "host/1")
        assert claim is not None
        assert claim.attempt == attempt
        claim.retry({"type": "Flaky", "attempt": attempt})
    ended = sc.runs.wait(run.run_id, 5)
    assert (ended.status, ended.error) == (RunStatus.FAILED, {"type": "Flaky", "attempt": 2})
    assert ended.attempt_errors == ({"type": "Flaky", "attempt": 1},)


def test_a_claim_given_back_counts_no_attempt(sc: Statecore) -> None:
    run = sc.runs.submit("review")
    claim = sc.runs.claim(run.run_id, "host/1")
    assert claim is not None
    assert claim.give_back().applied
    again = sc.runs.claim(run.run_id, "host/2")
    assert again is not None
    assert (again.attempt, again.fail({"type": "Bad"}).run.status) == (1, RunStatus.FAILED)


def test_waiting_ends_with_the_time(sc: Statecore) -> None:
    run = sc.runs.submit("review", start_at=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(TimeoutError, match="is still queued after"):
        sc.runs.wait(run.run_id, 0.05)


WRONG: list[tuple[str, dict[str, Any], type[RejectedError]]] = [
    ("a name with a space", {"name": "re view"}, InvalidIdError),
    ("a payload over 64 KB", {"name": "review", "payload": "x" * 65_535}, LimitExceededError),
    ("a payload that is not JSON", {"name": "review", "payload": {1}}, InvalidInputError),
    ("an unknown option", {"name": "review", "colour": "red"}, InvalidInputError),
    ("a lease of nothing", {"name": "review", "lease_s": 0}, InvalidInputError),
    ("a start without a zone", {"name": "review", "start_at": datetime(2030, 1, 1)}, InvalidInputError),  # noqa: DTZ001
    ("labels that are one text", {"name": "review", "labels": "ci"}, InvalidInputError),
    ("no attempt at all", {"name": "review", "max_attempts": 0}, InvalidInputError),
    ("a key with a slash", {"name": "review", "idempotency_key": "a/b"}, InvalidIdError),
]


@pytest.mark.parametrize(("run", "error"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_bad_submission_is_refused_and_nothing_is_written(
    sc: Statecore, run: dict[str, Any], error: type[RejectedError]
) -> None:
    with pytest.raises(error):
        sc.runs.submit_many([{"name": "review"}, run])
    assert sc.runs.list() == []


def test_results_have_a_limit_and_unknown_runs_an_error(sc: Statecore) -> None:
    claim = sc.runs.claim(sc.runs.submit("review").run_id, "host/1")
    assert claim is not None
    with pytest.raises(LimitExceededError, match="store the body elsewhere"):
        claim.succeed("x" * 262_143)
    assert claim.succeed("x" * 262_142).applied
    with pytest.raises(RunNotFoundError):
        sc.runs.events("nowhere")
    with pytest.raises(InvalidInputError):
        sc.runs.claim("r", "")
