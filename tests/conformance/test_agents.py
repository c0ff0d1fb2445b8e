"""Every store of agents passes the one suite: memory, Redis, and Redis Cluster."""

from __future__ import annotations

import pytest

from statecore.agents.memory_agents import MemoryAgents
from statecore.agents.memory_inbox import MemoryHeartbeatStore, MemoryInboxStore
from statecore.agents.memory_store import MemoryAgentStore
from statecore.agents.redis_store import RedisAgentStore, RedisHeartbeatStore, RedisInboxStore
from statecore.backends.embedded import ServerUrls
from statecore.backends.memory import MemoryEventLog, MemorySpace
from statecore.backends.redis_events import RedisEventLog
from statecore.backends.redis_namespace import RedisNamespace
from statecore.claims.memory_store import MemoryClaimStore
from statecore.claims.redis_store import RedisClaimStore
from statecore.clock import ManualClock
from statecore.supervisor.memory_store import MemoryAssignStore
from statecore.supervisor.redis_store import RedisAssignStore
from statecore.testing.agents import EARLY_WAIT_S, INBOX_LIMIT, AgentKit, AgentStoreSuite
from tests.conftest import MakeSpace


def memory_kit(clock: ManualClock) -> AgentKit:
    space = MemorySpace(clock)
    agents = MemoryAgents(space)
    return AgentKit(
        MemoryAgentStore(agents),
        MemoryInboxStore(agents, limit=INBOX_LIMIT, early_wait_s=EARLY_WAIT_S),
        MemoryHeartbeatStore(agents),
        MemoryClaimStore(clock, space.ledger, space.lock, space.append, space.next_fence),
        MemoryAssignStore(agents),
        lambda: list(MemoryEventLog(space).read()),
        clock.advance,
    )


def redis_kit(space: RedisNamespace, clock: ManualClock) -> AgentKit:
    return AgentKit(
        RedisAgentStore(space),
        RedisInboxStore(space, limit=INBOX_LIMIT, early_wait_s=EARLY_WAIT_S),
        RedisHeartbeatStore(space),
        RedisClaimStore(space),
        RedisAssignStore(space),
        lambda: list(RedisEventLog(space).read()),
        clock.advance,
    )


class TestMemoryAgents(AgentStoreSuite):
    @pytest.fixture
    def kit(self) -> AgentKit:
        return memory_kit(ManualClock())


class TestRedisAgents(AgentStoreSuite):
    @pytest.fixture
    def kit(self, urls: ServerUrls, namespace: str, make_space: MakeSpace) -> AgentKit:
        clock = ManualClock()
        return redis_kit(make_space(urls.redis_url, namespace, clock), clock)


class TestRedisClusterAgents(AgentStoreSuite):
    @pytest.fixture
    def kit(self, cluster_url: str, namespace: str, make_space: MakeSpace) -> AgentKit:
        clock = ManualClock()
        return redis_kit(make_space(cluster_url, namespace, clock), clock)
