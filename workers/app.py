"""The Celery app: `celery -A workers worker`, or `workers.setup(app)` for an app of your own."""

from __future__ import annotations

from typing import Any

from celery import Celery

from beat_schedule import BEAT_SCHEDULE
from statecore.settings import Settings
from workers.bootsteps.preflight import Preflight
from workers.queues import QUEUES, RUNS
from workers.runtime import Runtime
from workers.tasks import register


def create_app(runtime: Runtime | None = None) -> Celery:
    """A Celery app with Statecore's tasks, queues and schedule; the settings are read when it is first used."""
    runtime = runtime or Runtime()
    app = Celery("statecore", set_as_current=False)
    app.add_defaults(lambda: _configuration(runtime.settings))
    _attach(app, runtime)
    return app


def setup(app: Celery, runtime: Runtime | None = None) -> Celery:
    """Add Statecore's tasks, queues and schedule to your app, beside what it has. Your broker stays your broker:

    STATECORE_BROKER_URL must name the same one.
    """
    _attach(app, runtime or Runtime())

    @app.on_after_finalize.connect(weak=False)  # type: ignore[untyped-decorator]
    def add_schedule(sender: Celery, **_: Any) -> None:
        for name, entry in BEAT_SCHEDULE.items():
            signature = sender.tasks[entry["task"]].s()
            sender.add_periodic_task(entry["schedule"], signature, name=name, **entry["options"])

    @app.on_after_configure.connect(weak=False)  # type: ignore[untyped-decorator]
    def consume_queues(sender: Celery, **_: Any) -> None:
        for queue in QUEUES:
            sender.amqp.queues.select_add(queue)

    return app


def _attach(app: Celery, runtime: Runtime) -> None:
    app.statecore_runtime = runtime
    app.steps["worker"].add(Preflight)
    register(app)


def _configuration(settings: Settings) -> dict[str, Any]:
    broker_url = settings.require("broker_url")
    return {
        "broker_url": broker_url,
        "result_backend": settings.result_url or (broker_url if broker_url.startswith("redis") else None),
        "result_expires": 3600,
        "task_queues": QUEUES,
        "task_default_queue": RUNS,
        "task_default_routing_key": RUNS,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_acks_late": True,
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "broker_connection_retry_on_startup": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "beat_schedule": BEAT_SCHEDULE,
        "timezone": "UTC",
        "enable_utc": True,
    }
