"""What a program asks of agents: input is checked here, once, before anything is written."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from statecore.agents.model import MAX_BATCH, AgentRecord, EventOutcome, EventRequest
from statecore.agents.store import (
    AgentStore,
    Drained,
    HeartbeatCheck,
    HeartbeatStore,
    InboxStore,
    Registrations,
)
from statecore.agents.transitions import Lifecycle, TaskEffect
from statecore.claims.model import MAX_PRIORITY
from statecore.doorbell import Doorbell, Ring
from statecore.errors import InvalidInputError, LimitExceededError
from statecore.ids import (
    LARGEST_INT,
    check_agent_id,
    check_capabilities,
    check_id,
    check_int,
    check_op_id,
    encode_json,
)
from statecore.settings import Settings

DRAIN_TASK = "statecore.agents.drain_inbox"
ASSIGN_TASK = "statecore.supervisor.assign"
AGENTS_QUEUE = "agents"
CONTROL_QUEUE = "control"

_PAGE = 200
_SWEEP = 1000


class EventFields(TypedDict, total=False):
    """What an event may carry besides agent and name."""

    task_id: str | None
    priority: int | None
    op_id: str | None
    expected_version: int | None
    expected_state: str | None
    epoch: int | None
    data: Any


@dataclass(frozen=True, slots=True)
class Sent:
    """Events that wait in inboxes now; `rung` is False if the broker took no message and the sweep must ring."""

    op_ids: tuple[str, ...]
    rung: bool


class AgentService:
    """Agents of one namespace."""

    def __init__(
        self,
        store: AgentStore,
        inbox: InboxStore,
        heartbeats: HeartbeatStore,
        registrations: Registrations,
        doorbell: Doorbell,
        settings: Settings,
        lifecycle: Lifecycle,
    ) -> None:
        self.lifecycle = lifecycle
        self._store = store
        self._inbox = inbox
        self._heartbeats = heartbeats
        self._registrations = registrations
        self._doorbell = doorbell
        self._settings = settings

    def register(
        self,
        agent_id: str,
        capabilities: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        *,
        op_id: str | None = None,
    ) -> AgentRecord:
        """The agent is idle under a new epoch. If it was there before, its former process is fenced off."""
        check_agent_id(agent_id)
        wanted = check_capabilities(capabilities)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidInputError("metadata must be a JSON object")
        text = encode_json("metadata", dict(metadata or {}), self._settings.metadata_limit_bytes)
        op_id = check_op_id(op_id)
        self._registrations.save(agent_id, wanted, text)
        written = self._store.register(agent_id, wanted, text, op_id)
        self._wake(written.wake)
        return written.record

    def deregister(self, agent_id: str, *, op_id: str | None = None) -> None:
        """The agent is gone, its task queued again, its inbox dropped."""
        self._wake(self._store.deregister(check_agent_id(agent_id), check_op_id(op_id)))
        self._registrations.forget(agent_id)

    def get(self, agent_id: str) -> AgentRecord:
        """The agent as it stands."""
        return self._store.get(check_agent_id(agent_id))

    def list(self, state: str | None = None, *, after: str = "", limit: int = 100) -> builtins.list[AgentRecord]:
        """Up to `limit` agents by id, from behind `after`; pass the last id seen to get the next page."""
        check_int("limit", limit, 1, 10_000)
        if state is not None:
            self.lifecycle.check_state(state)
        if after:
            check_agent_id(after)
        found: builtins.list[AgentRecord] = []
        while len(found) < limit:
            page = self._store.list(after, _PAGE)
            found += [record for record in page if state is None or record.state == state]
            if len(page) < _PAGE:
                break
            after = page[-1].agent_id
        return found[:limit]

    def compare_and_set_agent_state(
        self, agent_id: str, expected: str, next: str, *, op_id: str | None = None
    ) -> AgentRecord:
        """The agent's state is `next` if it was `expected`; StateConflictError names what it is instead."""
        self.lifecycle.check_state(expected)
        self.lifecycle.check_state(next)
        written = self._store.compare_and_set(check_agent_id(agent_id), expected, next, check_op_id(op_id))
        self._wake(written.wake)
        return written.record

    def apply_event(self, agent_id: str, event: str, **fields: Unpack[EventFields]) -> AgentRecord:
        """The event is applied in one round trip; the agent after it."""
        written = self._store.apply_event(self.request(agent_id, event, **fields))
        self._wake(written.wake)
        return written.record

    def apply_events(self, events: Sequence[EventRequest | Mapping[str, Any]]) -> tuple[EventOutcome, ...]:
        """Up to 256 events are applied in their order in one script, with an outcome each."""
        applied = self._store.apply_events(self._requests(events))
        self._wake(applied.wake)
        return applied.outcomes

    def send_event(self, agent_id: str, event: str, **fields: Unpack[EventFields]) -> Sent:
        """The event waits in the agent's inbox: it can't get lost or overtaken, and a worker will apply it."""
        return self.send_events([self.request(agent_id, event, **fields)])

    def send_events(self, events: Sequence[EventRequest | Mapping[str, Any]]) -> Sent:
        """Up to 256 events wait in their agents' inboxes, all of them or none."""
        requests = self._requests(events)
        if not requests:
            return Sent((), rung=True)
        to_ring = self._inbox.append(requests)
        rung = not to_ring or self._doorbell.ring(*map(self._drain_ring, to_ring))
        return Sent(tuple(request.op_id for request in requests), rung)

    def drain_inbox(self, agent_id: str) -> Drained:
        """Apply what waits for the agent, up to 256 events."""
        drained = self._inbox.drain(check_agent_id(agent_id), MAX_BATCH)
        self._wake(drained.wake)
        return drained

    def ring_inboxes(self) -> int:
        """Ring again for inboxes that have waited too long; how many."""
        due = self._inbox.due(self._settings.inbox_ring_after_s, _SWEEP)
        if due:
            self._doorbell.ring(*map(self._drain_ring, due))
        return len(due)

    def heartbeat(self, agent_id: str, epoch: int) -> None:
        """The agent lives; LeaseLostError tells a process that it has been given up and must stop."""
        for refused in self.heartbeats([(agent_id, epoch)]):
            error = refused.error()
            assert error is not None
            raise error

    def heartbeats(self, beats: Sequence[tuple[str, int]]) -> builtins.list[EventOutcome]:
        """Many agents live, in one round trip; the outcomes of those that were refused."""
        _check_batch(beats)
        for agent_id, epoch in beats:
            check_agent_id(agent_id)
            check_int("epoch", epoch, 0, LARGEST_INT)
        return self._heartbeats.beat(beats) if beats else []

    def check_heartbeats(self) -> HeartbeatCheck:
        """Suspect the silent, lose the lost, put their tasks back into the queue."""
        check = self._heartbeats.check(self._settings.heartbeat_lost_after_s, _SWEEP)
        self._wake(check.wake)
        return check

    def clear_current_task(self, agent_id: str, *, op_id: str | None = None) -> AgentRecord:
        """The agent has no task; the task waits at its place again."""
        written = self._store.clear_current_task(check_agent_id(agent_id), check_op_id(op_id))
        self._wake(written.wake)
        return written.record

    def request(
        self,
        agent_id: str,
        event: str,
        *,
        task_id: str | None = None,
        priority: int | None = None,
        op_id: str | None = None,
        expected_version: int | None = None,
        expected_state: str | None = None,
        epoch: int | None = None,
        data: Any = None,
    ) -> EventRequest:
        """A checked request: the typed error of whatever is wrong with it, before anything is written."""
        check_agent_id(agent_id)
        rule = self.lifecycle.rule(event)
        if task_id is not None:
            check_id("task id", task_id)
        elif rule.task is TaskEffect.TAKE:
            raise InvalidInputError(f"event {event!r} needs the task_id that it assigns")
        if priority is not None:
            check_int("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        if expected_version is not None:
            check_int("expected_version", expected_version, 0, LARGEST_INT)
        if epoch is not None:
            check_int("epoch", epoch, 0, LARGEST_INT)
        if expected_state is not None:
            self.lifecycle.check_state(expected_state)
        text = encode_json("data", data, self._settings.data_limit_bytes)
        return EventRequest(
            agent_id,
            str(event),
            check_op_id(op_id),
            task_id,
            priority,
            expected_version,
            expected_state,
            epoch,
            text,
        )

    def _requests(self, events: Sequence[EventRequest | Mapping[str, Any]]) -> builtins.list[EventRequest]:
        _check_batch(events)
        return [event if isinstance(event, EventRequest) else self.request(**event) for event in events]

    def _drain_ring(self, agent_id: str) -> Ring:
        kwargs = {"agent_id": agent_id, "namespace": self._settings.namespace}
        return Ring(DRAIN_TASK, kwargs, AGENTS_QUEUE)

    def _wake(self, wake: bool) -> None:
        if wake:
            self._doorbell.ring_once("assign", assign_ring(self._settings.namespace))


def assign_ring(namespace: str) -> Ring:
    """The message that makes a supervisor look for work to hand out."""
    return Ring(ASSIGN_TASK, {"namespace": namespace}, CONTROL_QUEUE)


def _check_batch(items: Sequence[Any]) -> None:
    if len(items) > MAX_BATCH:
        raise LimitExceededError("the batch", len(items), MAX_BATCH, "split it")
