"""What Celery beat sends, and how often. Every tick is idempotent: two beats do no harm, no beat makes things late."""

from __future__ import annotations

from typing import Any

# A tick that waited longer than its interval is dropped by the worker: the next one does its work.
_TICKS: dict[str, float] = {
    "statecore.maintenance.check_heartbeats": 5.0,
    "statecore.maintenance.reclaim_stale": 5.0,
    "statecore.maintenance.ring_inboxes": 2.0,
    "statecore.maintenance.expire_runs": 2.0,
    "statecore.maintenance.redispatch_runs": 2.0,
    "statecore.supervisor.assign": 5.0,
}

BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    name: {"task": name, "schedule": seconds, "options": {"queue": "control", "expires": seconds * 2}}
    for name, seconds in _TICKS.items()
}
