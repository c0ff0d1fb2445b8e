"""Agents' events through real workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from pytest_celery import CeleryTestSetup

from statecore import Statecore
from statecore.claims.model import TaskStatus
from tests.integration.conftest import Producer, audited, await_audited
from tests.integration.nodes import PATIENCE_S, ProcessContainer, await_until

APPLY = "statecore.agents.apply_event"
APPLY_MANY = "statecore.agents.apply_events"
HEARTBEAT = "statecore.agents.heartbeat"
CHECK_RECEIVED = "Task statecore.maintenance.check_heartbeats["
ROUND = ("task_assigned", "work_started", "output_ready", "output_delivered")


class TestMessages:
    """Two workers with two children each, no beat."""

    @pytest.fixture(scope="class")
    @classmethod
    def worker_names(cls) -> Sequence[str]:
        return ("w1", "w2")

    @pytest.fixture(scope="class")
    @classmethod
    def worker_env(cls) -> dict[str, str]:
        return {"STATECORE_EARLY_EVENT_WAIT_S": "3"}

    def test_an_event_is_answered_with_its_outcome(self, producer: Producer, plane: Statecore) -> None:
        epoch = plane.agents.register("a1").epoch
        answer = producer.apply_event("a1", "task_assigned", task_id="t1", expected_version=1, op_id="op-1")
        assert answer == {
            "agent_id": "a1",
            "event": "task_assigned",
            "op_id": "op-1",
            "outcome": "applied",
            "state": "assigned",
            "version": 2,
            "epoch": epoch,
        }
        assert plane.agents.get("a1").current_task_id == "t1"

    def test_a_hundred_events_in_one_message_are_answered_in_their_order(
        self, producer: Producer, plane: Statecore
    ) -> None:
        plane.agents.register("a1")
        events = [
            {"agent_id": "a1", "event": event, "task_id": f"t{number // 4}", "expected_version": number + 1}
            for number, event in enumerate(ROUND * 25)
        ]
        answers = producer.ask(APPLY_MANY, events=events)
        assert [answer["outcome"] for answer in answers] == ["applied"] * 100
        assert [answer["version"] for answer in answers] == list(range(2, 102)), "an answer stands at its event's place"
        assert plane.agents.get("a1").version == 101

    def test_a_message_delivered_twice_is_applied_once_and_answered_alike(
        self, producer: Producer, plane: Statecore
    ) -> None:
        plane.agents.register("a1")
        fields = {"agent_id": "a1", "event": "task_assigned", "task_id": "t1", "expected_version": 1}
        first = producer.send(APPLY, message_id="message-1", **fields)
        answer = first.get(timeout=PATIENCE_S)
        first.forget()
        producer.apply_event("a1", "work_started", task_id="t1", expected_version=2)

        assert producer.ask(APPLY, message_id="message-1", **fields) == answer, "a repeat gets the first answer"
        assert answer["op_id"] == "message-1", "the message's id is its op_id"
        assert plane.agents.get("a1").version == 3, "the repeat changed nothing"
        assert len(audited(plane, "agent:task_assigned")) == 1, "the repeat is not audited as a change"

    def test_an_event_of_an_old_epoch_is_refused_and_audited(self, producer: Producer, plane: Statecore) -> None:
        old = plane.agents.register("a1").epoch
        now = plane.agents.register("a1")
        answer = producer.apply_event("a1", "agent_failed", epoch=old, task_id="t1", op_id="late")
        assert (answer["outcome"], answer["error"]) == ("conflict", "LeaseLostError"), answer
        assert str(old) in answer["message"], "the answer says which epoch was refused"
        assert plane.agents.get("a1").version == now.version, "the late write changed nothing"
        (refused,) = audited(plane, "agent:refused", "a1")
        assert (refused.op_id, refused.data["code"]) == ("late", "LEASE_LOST")

    def test_an_event_of_a_finished_task_is_refused_and_audited(self, producer: Producer, plane: Statecore) -> None:
        epoch = plane.agents.register("a1").epoch
        plane.agents.apply_event("a1", "task_assigned", task_id="t2")
        answer = producer.apply_event("a1", "work_started", epoch=epoch, task_id="t1")
        assert (answer["outcome"], answer["error"]) == ("conflict", "LeaseLostError"), answer
        assert plane.agents.get("a1").state == "assigned"
        assert len(audited(plane, "agent:refused", "a1")) == 1

    def test_an_old_version_is_a_conflict_that_names_what_was_found(self, producer: Producer, plane: Statecore) -> None:
        plane.agents.register("a1")
        plane.agents.apply_event("a1", "task_assigned", task_id="t1")
        answer = producer.apply_event("a1", "drain_requested", expected_version=1)
        assert (answer["outcome"], answer["error"], answer["state"], answer["version"]) == (
            "conflict",
            "StateConflictError",
            "assigned",
            2,
        )

    def test_an_early_event_is_applied_once_its_predecessor_arrives(
        self, producer: Producer, plane: Statecore, celery_setup: CeleryTestSetup
    ) -> None:
        plane.agents.register("a1")
        early = producer.send(APPLY, agent_id="a1", event="work_started", task_id=None, expected_version=2)
        retried = f"{APPLY}[{early.id}] retry: Retry in"
        await_until(
            lambda: any(retried in worker.logs() for worker in celery_setup.worker_cluster),
            PATIENCE_S,
            "the early event is retried",
        )
        assert plane.agents.get("a1").version == 1, "an early event changes nothing"
        producer.apply_event("a1", "task_assigned", task_id="t1", expected_version=1)

        answer = early.get(timeout=PATIENCE_S)
        assert (answer["outcome"], answer["state"], answer["version"]) == ("applied", "working", 3), answer
        assert [event.op_id for event in audited(plane, "agent:work_started")] == [early.id], "applied once"

    def test_a_batch_with_an_event_that_stays_early_still_answers_for_each(
        self, producer: Producer, plane: Statecore
    ) -> None:
        plane.agents.register("a1")
        events = [
            {"agent_id": "a1", "event": "task_assigned", "task_id": "t1", "expected_version": 1},
            {"agent_id": "a1", "event": "work_started", "expected_version": 9},
            {"agent_id": "a1", "event": "output_ready", "expected_version": 2},
        ]
        answers = producer.ask(APPLY_MANY, events=events)
        assert [answer["outcome"] for answer in answers] == ["applied", "rejected", "rejected"]
        errors = [event.data["error"] for event in audited(plane, "message:rejected")]
        assert sorted(errors) == ["EarlyEventError", "InvalidTransitionError"]

    def test_an_event_that_stays_early_is_rejected_and_audited(self, producer: Producer, plane: Statecore) -> None:
        plane.agents.register("a1")
        answer = producer.apply_event("a1", "drain_requested", expected_version=7, op_id="ahead")
        assert (answer["outcome"], answer["error"]) == ("rejected", "EarlyEventError"), answer
        assert plane.agents.get("a1").version == 1
        rejected = await_audited(plane, "message:rejected", "a1")
        assert rejected.data["error"] == "EarlyEventError"

    def test_a_heartbeat_is_noted_and_an_old_one_refused(self, producer: Producer, plane: Statecore) -> None:
        old = plane.agents.register("a1").epoch
        record = plane.agents.register("a1")
        before = record.heartbeat_at
        assert before is not None
        assert producer.ask(HEARTBEAT, agent_id="a1", epoch=record.epoch) == {"outcome": "applied"}
        after = plane.agents.get("a1").heartbeat_at
        assert after is not None
        assert after > before, "the store's clock moved the heartbeat on"

        answer = producer.ask(HEARTBEAT, agent_id="a1", epoch=old)
        assert (answer["outcome"], answer["error"]) == ("conflict", "LeaseLostError"), answer
        assert plane.agents.get("a1").heartbeat_at == after, "a former process can't keep the agent alive"

    @pytest.mark.usefixtures("celery_setup")
    def test_sent_events_are_applied_in_the_order_sent(self, plane: Statecore) -> None:
        plane.agents.register("a1")
        sent = [
            plane.agents.send_event("a1", event, task_id=f"t{number // 4}") for number, event in enumerate(ROUND * 25)
        ]
        assert all(receipt.rung for receipt in sent), "the broker took every message"
        await_until(
            lambda: plane.agents.get("a1").version == 101,
            PATIENCE_S,
            lambda: f"100 sent events are applied; the agent is {plane.agents.get('a1')}",
        )
        applied = [event.op_id for event in plane.events.read(subject="a1") if event.kind != "agent:registered"]
        assert applied == [op_id for receipt in sent for op_id in receipt.op_ids]

    @pytest.mark.usefixtures("celery_setup")
    @pytest.mark.parametrize("last", ["the task", "the agent"])
    def test_a_waiting_task_and_an_idle_agent_meet_without_beat(self, plane: Statecore, last: str) -> None:
        comes = {"the agent": lambda: plane.agents.register("a1"), "the task": lambda: plane.claims.enqueue("t1", 7)}
        for name in sorted(comes, key=lambda name: name == last):
            comes[name]()
        agent = await_until(
            lambda: (record := plane.agents.get("a1")).current_task_id and record,
            PATIENCE_S,
            f"the supervisor is rung when {last} comes last",
        )
        assert (agent.state, agent.current_task_id, agent.current_task_priority) == ("assigned", "t1", 7)

    def test_answers_of_concurrent_messages_are_never_mixed_up(self, producer: Producer, plane: Statecore) -> None:
        agents = [f"a{number}" for number in range(40)]
        for agent_id in agents:
            plane.agents.register(agent_id)
        asked = [
            (
                agent_id,
                f"{agent_id}.{step}",
                producer.send(
                    APPLY,
                    agent_id=agent_id,
                    event=ROUND[step % 4],
                    op_id=f"{agent_id}.{step}",
                    task_id=f"{agent_id}.t{step // 4}" if step % 4 == 0 else None,
                    expected_version=step + 1,
                ),
            )
            for step in range(10)
            for agent_id in agents
        ]
        for agent_id, op_id, result in asked:
            answer = result.get(timeout=PATIENCE_S)
            assert (answer["agent_id"], answer["op_id"]) == (agent_id, op_id), "an answer belongs to its request"
            assert answer["outcome"] == "applied", answer
            assert answer["version"] == int(op_id.rpartition(".")[2]) + 2, answer
        assert {plane.agents.get(agent_id).version for agent_id in agents} == {11}


class TestLostAgents:
    """Two beats beside each other, and a short patience with silent agents."""

    @pytest.fixture(scope="class")
    @classmethod
    def worker_env(cls) -> dict[str, str]:
        return {"STATECORE_HEARTBEAT_LOST_AFTER_S": "1.5"}

    def test_a_silent_agent_is_lost_once_and_its_task_goes_to_another(
        self,
        plane: Statecore,
        producer: Producer,
        celery_setup: CeleryTestSetup,
        start_beat: Callable[[str], ProcessContainer],
    ) -> None:
        epoch = plane.agents.register("silent").epoch
        plane.claims.enqueue("t1", priority=5)
        await_until(lambda: plane.claims.get("t1").claimed_by == "silent", PATIENCE_S, "t1 is assigned")
        place = plane.claims.get("t1").place
        plane.claims.enqueue("t2", priority=5)

        start_beat("beat1")
        start_beat("beat2")
        await_audited(plane, "agent:heartbeat_lost", "silent")
        task = plane.claims.get("t1")
        assert (task.status, task.priority, task.place) == (TaskStatus.QUEUED, 5, place), "back at its place"
        assert plane.agents.get("silent").current_task_id is None

        awake = plane.agents.register("awake").epoch

        def beating_and(condition: Callable[[], bool]) -> Callable[[], bool]:
            def beat_and_look() -> bool:
                plane.agents.heartbeat("awake", awake)
                return condition()

            return beat_and_look

        await_until(
            beating_and(lambda: plane.agents.get("awake").current_task_id is not None), PATIENCE_S, "awake gets a task"
        )
        assert plane.agents.get("awake").current_task_id == "t1", "t1 stood before t2 and still does"

        worker = celery_setup.worker
        assert worker is not None
        checks = worker.logs().count(CHECK_RECEIVED)
        await_until(
            beating_and(lambda: worker.logs().count(CHECK_RECEIVED) >= checks + 4),
            PATIENCE_S,
            "both beats have checked again",
        )
        assert len(audited(plane, "agent:heartbeat_lost")) == 1, "lost once"
        assert len(audited(plane, "task:reclaimed", "t1")) == 1, "put back once"
        assert plane.agents.get("awake").current_task_id == "t1"

        answer = producer.apply_event("silent", "work_started", epoch=epoch, task_id="t1", op_id="too-late")
        assert (answer["outcome"], answer["error"]) == ("conflict", "LeaseLostError"), answer
        assert f"epoch {epoch}" in answer["message"], "refused by its epoch, whatever its task"
        assert plane.agents.get("silent").state == "lost", "the late write changed nothing"
        assert [event.op_id for event in audited(plane, "agent:refused", "silent")] == ["too-late"]
