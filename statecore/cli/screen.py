"""What a viewer of the demo sees: a live screen in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from statecore.agents.model import AgentView
from statecore.cli.verdict import Verdict
from statecore.events import Event

_STATE_STYLES = {
    "idle": "dim",
    "assigned": "cyan",
    "working": "blue",
    "reporting": "magenta",
    "draining": "yellow",
    "stopped": "yellow",
    "lost": "bold red",
}
_EVENTS_SHOWN = 6
_AGENTS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of things at one moment. Agents with what they do in the demo, processes with how they are."""

    agents: list[tuple[str, str, AgentView | None]]
    processes: list[tuple[str, str]]
    submitted: int
    applied: int
    recent: list[Event]


class Screen(AbstractContextManager["Screen"], Protocol):
    """Where the story is told."""

    def note(self, text: str) -> None:
        """Say what happens now."""
        ...

    def watch(self, look: Callable[[], Scene]) -> None:
        """Show what `look` returns, as far as this screen can."""
        ...


class PlainScreen:
    """One line per note, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def note(self, text: str) -> None:
        passed_s = time.monotonic() - self._began
        self._console.print(f"{passed_s:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def watch(self, look: Callable[[], Scene]) -> None:  # noqa: ARG002 - lines can't show a scene
        return None


class LiveScreen:
    """Agents, counters, the last audit events and the notes, redrawn several times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._notes: list[tuple[float, str]] = []
        self._look: Callable[[], Scene] | None = None
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        self._notes.append((time.monotonic() - self._began, text))

    def watch(self, look: Callable[[], Scene]) -> None:
        self._look = look

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [Text(f"statecore demo  {time.monotonic() - self._began:.1f} s", style="bold")]
        room = self._console.height - 1
        scene = self._look() if self._look else None
        if scene is not None:
            parts.append(_counters(scene))
            room -= min(len(scene.agents), _AGENTS_SHOWN) + 7
            if scene.agents:
                parts.append(_agents(scene))
            for_events = min(room - len(self._notes) - 2, _EVENTS_SHOWN)
            if scene.recent and for_events > 0:
                parts.append(_recent(scene.recent[-for_events:]))
        parts.append(self._story(max(1, room)))
        return Group(*parts)

    def _story(self, room: int) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        notes = self._notes[-room:]
        for number, (passed_s, text) in enumerate(notes, start=1):
            now = number == len(notes)
            table.add_row(Text(f"{passed_s:6.1f} s", style="dim"), Text(text, style="bold yellow" if now else ""))
        return table


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The verdict, check by check, and then in one line."""
    console.line()
    for good, name, text in _checks(verdict):
        word = Text(f"  {'ok' if good else 'FAILED':<8}", style="green" if good else "bold red")
        console.print(word + Text(f"{name:<15}{text}", style="default"))
    console.line()
    for problem in verdict.problems:
        console.print(f"  {problem}", style="red", markup=False, highlight=False, soft_wrap=True)
    if verdict.holds:
        console.print("It holds: nothing lost, nothing done twice, the late write refused.", style="bold green")
    else:
        console.print("It does not hold.", style="bold red")


def _checks(verdict: Verdict) -> list[tuple[bool, str, str]]:
    return [
        (
            verdict.applied == verdict.submitted,
            "applied",
            f"{verdict.applied} of {verdict.submitted} submitted events ({verdict.refused} refused)",
        ),
        (verdict.lost == 0, "lost", str(verdict.lost)),
        (verdict.doubled == 0, "doubled", str(verdict.doubled)),
        (verdict.out_of_order == 0, "out of order", str(verdict.out_of_order)),
        (
            verdict.fenced >= 1 and verdict.fenced == verdict.late_writes,
            "fenced",
            f"{verdict.fenced} of {verdict.late_writes} late writes refused",
        ),
        (
            verdict.replay_equals_live,
            "replay = live",
            f"{verdict.audit_events} audit events, replayed, equal the live records",
        ),
    ]


def _counters(scene: Scene) -> Padding:
    line = Text.assemble(
        ("submitted ", "dim"),
        f"{scene.submitted:<6}",
        (" applied ", "dim"),
        f"{scene.applied:<6}",
        (" in flight ", "dim"),
        f"{max(0, scene.submitted - scene.applied):<5}",
    )
    line.append("\n")
    for name, condition in scene.processes:
        line.append(f"{name} ", "dim").append(f"{condition}  ", "bold red" if condition == "killed" else "green")
    return Padding(line, (1, 0, 1, 0))


def _agents(scene: Scene) -> Padding:
    table = _grid("agent", "role", "state", "version", "epoch", "task")
    for agent_id, role, view in scene.agents[:_AGENTS_SHOWN]:
        if view is None:
            table.add_row(agent_id, role, "-")
        else:
            state = Text(f"{view.state:<10}", style=_STATE_STYLES.get(view.state, ""))
            table.add_row(agent_id, role, state, str(view.version), str(view.epoch), view.task_id or "-")
    if len(scene.agents) > _AGENTS_SHOWN:
        table.add_row(f"... {len(scene.agents) - _AGENTS_SHOWN} more")
    return Padding(table, (0, 0, 1, 0))


def _recent(events: list[Event]) -> Padding:
    table = _grid("audit", "subject", "", "by")
    for event in events:
        table.add_row(event.kind, event.subject, _change(event), event.actor)
    return Padding(table, (0, 0, 1, 0))


def _change(event: Event) -> str:
    if event.after is None:
        return str(event.data.get("code", "")) if isinstance(event.data, dict) else ""
    name = "state" if "state" in event.after else "status"
    return f"{event.before[name] if event.before else '-'} -> {event.after[name]}"


def _grid(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header, no_wrap=True)
    return table
