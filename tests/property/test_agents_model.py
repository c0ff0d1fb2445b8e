"""Memory and Redis give the same answers to the same calls, whatever the calls: the pure table rules both."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from statecore.agents.model import AgentEvent, AgentState, EventRequest
from statecore.backends.embedded import ServerUrls
from statecore.clock import ManualClock
from statecore.errors import StatecoreError
from statecore.testing.agents import AgentKit
from tests.conformance.test_agents import memory_kit, redis_kit
from tests.conftest import MakeSpace

AGENTS = st.sampled_from(["a1", "a2", "a3"])
TASKS = st.sampled_from([f"t{number}" for number in range(6)])
CAPABILITIES = st.sets(st.sampled_from(["gpu", "python"]))
PRIORITIES = st.integers(-2, 2)
_namespaces = itertools.count(1)


class Twins(RuleBasedStateMachine):
    """Two stores side by side, the pure one as the oracle."""

    make_redis_kit: Callable[[ManualClock], AgentKit]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.memory = memory_kit(self.clock)
        self.redis = type(self).make_redis_kit(self.clock)
        self.op_ids: list[str] = []
        self.epochs: list[int] = [7]
        self.fences: list[int] = [7]

    def both(self, call: Callable[[AgentKit], Any]) -> Any:
        answers = []
        for kit in (self.memory, self.redis):
            try:
                answers.append(call(kit))
            except StatecoreError as error:
                answers.append((type(error), error.args))
        assert answers[0] == answers[1]
        return answers[0]

    def op_id(self, data: st.DataObject) -> str:
        """Mostly a fresh operation, sometimes a repeat."""
        if self.op_ids and data.draw(st.integers(0, 5)) == 0:
            return data.draw(st.sampled_from(self.op_ids[-5:]))
        self.op_ids.append(f"op{len(self.op_ids)}")
        return self.op_ids[-1]

    def request(self, data: st.DataObject) -> EventRequest:
        event = data.draw(st.sampled_from(AgentEvent))
        return EventRequest(
            data.draw(AGENTS),
            event,
            self.op_id(data),
            task_id=data.draw(TASKS if event == "task_assigned" else st.none() | TASKS),
            priority=data.draw(st.none() | PRIORITIES),
            expected_version=data.draw(st.none() | st.integers(1, 12)),
            expected_state=data.draw(st.none() | st.sampled_from(AgentState)),
            epoch=data.draw(st.none() | st.sampled_from(self.epochs)),
        )

    @rule(agent=AGENTS, capabilities=CAPABILITIES, data=st.data())
    def register(self, agent: str, capabilities: set[str], data: st.DataObject) -> None:
        op_id = self.op_id(data)
        answer = self.both(lambda kit: kit.agents.register(agent, sorted(capabilities), "{}", op_id).record)
        if not isinstance(answer, tuple):
            self.epochs.append(answer.epoch)

    @rule(agent=AGENTS, data=st.data())
    def deregister(self, agent: str, data: st.DataObject) -> None:
        op_id = self.op_id(data)
        self.both(lambda kit: kit.agents.deregister(agent, op_id) in (True, False))

    @rule(data=st.data())
    def apply_event(self, data: st.DataObject) -> None:
        request = self.request(data)
        self.both(lambda kit: kit.agents.apply_event(request).record)

    @rule(data=st.data(), size=st.integers(2, 5))
    def apply_events(self, data: st.DataObject, size: int) -> None:
        requests = [self.request(data) for _ in range(size)]
        self.both(lambda kit: kit.agents.apply_events(requests).outcomes)

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        request = self.request(data)
        self.both(lambda kit: kit.inbox.append([request]))

    @rule(agent=AGENTS, limit=st.integers(1, 3))
    def drain(self, agent: str, limit: int) -> None:
        def drained(kit: AgentKit) -> Any:
            result = kit.inbox.drain(agent, limit)
            return [(o.request.op_id, o.request.event, o.code, o.view) for o in result.outcomes], result.waiting

        self.both(drained)

    @rule(agent=AGENTS, expected=st.sampled_from(AgentState), wanted=st.sampled_from(AgentState), data=st.data())
    def compare_and_set(self, agent: str, expected: str, wanted: str, data: st.DataObject) -> None:
        op_id = self.op_id(data)
        self.both(lambda kit: kit.agents.compare_and_set(agent, expected, wanted, op_id).record)

    @rule(agent=AGENTS, data=st.data())
    def clear(self, agent: str, data: st.DataObject) -> None:
        op_id = self.op_id(data)
        self.both(lambda kit: kit.agents.clear_current_task(agent, op_id).record)

    @rule(task=TASKS, priority=PRIORITIES, capabilities=CAPABILITIES, data=st.data())
    def enqueue(self, task: str, priority: int, capabilities: set[str], data: st.DataObject) -> None:
        op_id = self.op_id(data)
        self.both(lambda kit: kit.claims.enqueue(task, priority, sorted(capabilities), 2, op_id))

    @rule(claimer=st.sampled_from(["c1", "c2"]), capabilities=CAPABILITIES, data=st.data())
    def claim(self, claimer: str, capabilities: set[str], data: st.DataObject) -> None:
        op_id = self.op_id(data)
        task = self.both(lambda kit: kit.claims.claim_next(claimer, sorted(capabilities), 20, op_id))
        if task is not None and not isinstance(task, tuple):
            self.fences.append(task.fence)

    @rule(task=TASKS, verb=st.sampled_from(["complete", "release"]), data=st.data())
    def settle(self, task: str, verb: str, data: st.DataObject) -> None:
        fence, op_id = data.draw(st.sampled_from(self.fences)), self.op_id(data)
        self.both(lambda kit: getattr(kit.claims, verb)(task, fence, op_id))

    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        op_id = self.op_id(data)
        self.both(lambda kit: kit.assign.assign_next(op_id))

    @rule(agent=AGENTS, data=st.data())
    def beat(self, agent: str, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.epochs))
        self.both(lambda kit: kit.heartbeats.beat([(agent, epoch)]))

    @rule(seconds=st.integers(1, 25))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        self.both(lambda kit: sorted(kit.heartbeats.check(30, 100).lost))
        self.both(lambda kit: {task.task_id for task in kit.claims.reclaim_stale(100)})
        self.both(lambda kit: sorted(kit.inbox.due(2, 100)))

    @invariant()
    def the_same_agents(self) -> None:
        self.both(lambda kit: kit.agents.list("", 10))
        self.both(lambda kit: kit.claims.depth())

    def teardown(self) -> None:
        def told(kit: AgentKit) -> Any:
            # A sweep of leases draws its op_id itself; all others come from here.
            return sorted((e.kind, e.subject, e.op_id if len(e.op_id) < 36 else "swept") for e in kit.events())

        self.both(told)


@pytest.mark.timeout(900)  # A difference that was found is shrunk, which takes its time.
def test_memory_and_redis_never_differ(urls: ServerUrls, make_space: MakeSpace, namespace: str) -> None:
    def make(clock: ManualClock) -> AgentKit:
        return redis_kit(make_space(urls.redis_url, f"{namespace[:80]}.{next(_namespaces)}", clock), clock)

    machine = type("RedisTwins", (Twins,), {"make_redis_kit": staticmethod(make)})
    run_state_machine_as_test(
        machine,
        settings=settings(stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)),
    )
