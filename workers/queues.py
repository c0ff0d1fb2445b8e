"""The queues that workers listen to."""

from __future__ import annotations

from kombu import Queue

AGENTS = "agents"
RUNS = "runs"
CONTROL = "control"

QUEUES = tuple(Queue(name, routing_key=name) for name in (AGENTS, RUNS, CONTROL))
