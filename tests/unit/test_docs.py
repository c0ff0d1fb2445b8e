"""The docs say what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from beat_schedule import BEAT_SCHEDULE
from statecore.agents.transitions import AGENT_LIFECYCLE, EventRule, TaskEffect
from statecore.runs.transitions import to_mermaid
from workers.queues import QUEUES
from workers.tasks import SPECS

ROOT = Path(__file__).parents[2]
EFFECTS = {
    TaskEffect.KEEP: "kept",
    TaskEffect.TAKE: "taken",
    TaskEffect.FINISH: "finished",
    TaskEffect.PUT_BACK: "put back",
}


def block(page: str, name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", (ROOT / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def table_row(event: str, rule: EventRule) -> str:
    sources: dict[str, list[str]] = {}
    for source, target in rule.edges.items():
        sources.setdefault(target, []).append(source)
    moves = "; ".join(f"{', '.join(froms)} -> {to}" for to, froms in sources.items())
    effect = EFFECTS[rule.task] + (", epoch raised" if rule.raises_epoch else "")
    return f"| `{event}` | {moves} | {effect} |"


def test_the_readmes_table_is_the_codes_table() -> None:
    rows = block("README.md", "table").splitlines()[2:]
    assert rows == [table_row(event, rule) for event, rule in AGENT_LIFECYCLE.rules.items()]


def test_the_diagram_is_generated_from_the_table() -> None:
    assert block("docs/agents.md", "diagram") == f"```mermaid\n{AGENT_LIFECYCLE.to_mermaid()}\n```"


def test_the_diagram_of_runs_is_generated_from_their_table() -> None:
    assert block("docs/runs.md", "diagram") == f"```mermaid\n{to_mermaid()}\n```"


def test_the_wire_page_lists_every_task_with_its_arguments() -> None:
    rows = block("docs/wire.md", "tasks").splitlines()[2:]
    expected = []
    for spec in SPECS:
        names = list(inspect.signature(spec.function).parameters)[1:]
        expected.append(f"| `{spec.name}` | {spec.queue} | {', '.join(f'`{name}`' for name in names)} |")
    assert rows == expected


def test_beat_sends_only_tasks_that_exist_to_queues_that_exist() -> None:
    queues = {spec.name: spec.queue for spec in SPECS}
    for entry in BEAT_SCHEDULE.values():
        assert entry["options"]["queue"] == queues[entry["task"]]
    assert set(queues.values()) <= {queue.name for queue in QUEUES}


@pytest.fixture(scope="module")
def all_tests() -> str:
    folders = (ROOT / "tests", ROOT / "statecore" / "testing")
    return "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))


def test_every_test_that_the_seed_map_names_exists(all_tests: str) -> None:
    page = (ROOT / "docs/seed-map.md").read_text()
    names = set(re.findall(r"`(test_\w+|Test\w+)`", page))
    assert len(names) > 25
    missing = sorted(name for name in names if not re.search(rf"(?:def|class) {name}\b", all_tests))
    assert missing == []
    files = set(re.findall(r"`((?:tests|statecore)/[\w/.]+)`", page + (ROOT / "README.md").read_text()))
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
