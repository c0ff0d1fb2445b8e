"""The README's and the docs' examples, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from statecore import Lifecycle, Settings, Statecore

ROOT = Path(__file__).parents[2]


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def own_servers(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    for name in ("redis_url", "broker_url", "database_url", "namespace"):
        monkeypatch.setenv(f"STATECORE_{name.upper()}", getattr(settings, name))


@pytest.mark.usefixtures("own_servers")
def test_the_readmes_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = examples("README.md")
    exec(compile(example, "README.md", "exec"), {})
    assert "agent:work_started" in capsys.readouterr().out
    with Statecore.connect() as sc:
        sc.agents.drain_inbox("coder-1")
        assert sc.agents.get("coder-1").state == "idle"
        assert sc.claims.get("fix-issue-7").status == "completed"


@pytest.mark.usefixtures("own_servers")
def test_the_example_of_runs_runs() -> None:
    (example,) = examples("docs/runs.md")
    names: dict[str, Any] = {}
    exec(compile(example, "runs.md", "exec"), names)
    assert (names["ended"].status, names["ended"].result) == ("succeeded", {"approved": True})
    assert names["story"] == ["run:submitted", "run:claimed", "run:succeeded"]


def test_the_docs_own_table_is_a_lifecycle() -> None:
    (example,) = (text for text in examples("docs/agents.md") if "LIFECYCLE" in text)
    names: dict[str, object] = {}
    exec(compile(example, "agents.md", "exec"), names)
    assert isinstance(names["LIFECYCLE"], Lifecycle)


def test_a_lifecycle_of_ones_own_rules_a_real_store(settings: Settings) -> None:
    (example,) = (text for text in examples("docs/agents.md") if "LIFECYCLE" in text)
    names: dict[str, Lifecycle] = {}
    exec(compile(example, "agents.md", "exec"), names)
    with Statecore.connect(settings=settings, lifecycle=names["LIFECYCLE"]) as sc:
        assert sc.agents.register("a1").state == "ready"
        sc.claims.enqueue("t1")
        assigned = sc.supervisor.assign_next()
        assert assigned is not None
        assert sc.agents.get("a1").state == "busy"
        assert sc.agents.apply_event("a1", "done", epoch=assigned.epoch, task_id="t1").state == "ready"
