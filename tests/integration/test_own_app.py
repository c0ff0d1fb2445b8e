"""Statecore inside a user's own Celery app: `workers.setup(app)`, and nothing of theirs changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_celery import CeleryTestWorker, CeleryWorkerCluster

from beat_schedule import BEAT_SCHEDULE
from statecore import Settings, Statecore
from tests.integration.conftest import Producer
from tests.integration.nodes import (
    PATIENCE_S,
    ROOT,
    await_until,
    beat_command,
    celery_process,
    worker_command,
    worker_environment,
)

SHOP = """
from celery import Celery

import workers

app = Celery("shop", broker={broker!r}, backend={backend!r})
app.conf.task_default_queue = "orders"
app.conf.broker_connection_retry_on_startup = True
workers.setup(app)


@app.task(name="shop.add")
def add(x, y):
    return x + y


@app.task(name="shop.tick")
def tick():
    return "tick"


# Assigned after setup, as many projects do: it must not cost them Statecore's ticks.
app.conf.beat_schedule = {{"shop": {{"task": "shop.tick", "schedule": 1.0}}}}
"""

SHOW_APP = """
import json, shop
app = shop.app
app.finalize()
json.dump({
    "consumed": sorted(app.amqp.queues.consume_from),
    "default_queue": app.conf.task_default_queue,
    "add_goes_to": app.amqp.router.route({}, "shop.add")["queue"].name,
    "broker": app.conf.broker_url,
    "schedule": {
        name: {"task": entry["task"], "every_s": float(entry["schedule"])}
        for name, entry in app.conf.beat_schedule.items()
    },
}, __import__("sys").stdout)
"""


class TestOwnApp:
    """One worker of the user's app, started without -Q."""

    @pytest.fixture(scope="class")
    @classmethod
    def shop_env(cls, fleet_settings: Settings, fleet_folder: Path) -> dict[str, str]:
        source = SHOP.format(broker=fleet_settings.broker_url, backend=fleet_settings.result_url)
        (fleet_folder / "shop.py").write_text(source)
        return worker_environment(fleet_settings, {"PYTHONPATH": f"{fleet_folder}:{ROOT}"})

    @pytest.fixture(scope="class")
    @classmethod
    def celery_worker_cluster(cls, shop_env: dict[str, str], fleet_folder: Path) -> Iterator[CeleryWorkerCluster]:
        worker = celery_process("shop", worker_command("shop"), shop_env, fleet_folder, app="shop", cwd=fleet_folder)
        try:
            worker.ready()
            yield CeleryWorkerCluster(CeleryTestWorker(worker, app=None))
        finally:
            worker.teardown()

    @pytest.fixture
    def shop(self, shop_env: dict[str, str], fleet_folder: Path) -> dict[str, Any]:
        """What a fresh process sees of the user's app."""
        argv = [sys.executable, "-c", SHOW_APP]
        shown = subprocess.run(argv, env=shop_env, cwd=fleet_folder, capture_output=True, text=True, timeout=PATIENCE_S)
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def test_the_worker_serves_the_users_own_task(self, celery_setup: Any) -> None:
        result = celery_setup.app.send_task("shop.add", (2, 3), queue="orders")
        assert result.get(timeout=PATIENCE_S) == 5

    def test_the_worker_serves_agents_events(self, producer: Producer, plane: Statecore) -> None:
        plane.agents.register("a1")
        answer = producer.apply_event("a1", "task_assigned", task_id="t1", expected_version=1)
        assert (answer["outcome"], answer["state"]) == ("applied", "assigned")

    @pytest.mark.usefixtures("celery_setup")
    def test_the_worker_serves_inboxes_and_the_supervisor(self, plane: Statecore) -> None:
        plane.agents.register("a1")
        plane.claims.enqueue("t1")
        await_until(lambda: plane.agents.get("a1").current_task_id == "t1", PATIENCE_S, "the control queue is served")
        plane.agents.send_event("a1", "work_started")
        await_until(lambda: plane.agents.get("a1").state == "working", PATIENCE_S, "the agents queue is served")

    def test_queues_of_both_are_consumed_and_the_users_stay_theirs(
        self, shop: dict[str, Any], fleet_settings: Settings
    ) -> None:
        assert shop["consumed"] == ["agents", "control", "orders", "runs"]
        assert shop["default_queue"] == "orders", "a task without a queue goes where it went before"
        assert shop["add_goes_to"] == "orders"
        assert shop["broker"] == fleet_settings.broker_url

    def test_the_schedule_has_the_users_entry_and_every_tick_of_ours(self, shop: dict[str, Any]) -> None:
        ours = {
            name: {"task": entry["task"], "every_s": float(entry["schedule"])} for name, entry in BEAT_SCHEDULE.items()
        }
        assert shop["schedule"] == {"shop": {"task": "shop.tick", "every_s": 1.0}, **ours}

    def test_beat_sends_both_and_the_worker_runs_them(
        self, celery_setup: Any, shop_env: dict[str, str], fleet_folder: Path, tmp_path: Path
    ) -> None:
        beat = celery_process("beat", beat_command(tmp_path, "beat"), shop_env, tmp_path, app="shop", cwd=fleet_folder)
        try:
            beat.ready()
            for task in ("shop.tick", "statecore.maintenance.ring_inboxes"):
                await_until(
                    lambda task=task: f"Task {task}[" in celery_setup.worker.logs(),
                    PATIENCE_S,
                    lambda task=task: f"{task} reaches the worker; beat says:\n{beat.logs()[-2000:]}",
                )
        finally:
            beat.teardown()
        assert "raised unexpected" not in celery_setup.worker.logs()
