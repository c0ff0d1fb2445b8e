"""`statecore demo`: the whole thing in front of your eyes, on servers that vanish with it."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from statecore.agents.transitions import AGENT_LIFECYCLE
from statecore.backends.embedded import EmbeddedServers
from statecore.cli.exit_codes import ExitCode
from statecore.cli.interrupts import Interrupts
from statecore.cli.processes import CeleryProcesses
from statecore.cli.screen import LiveScreen, PlainScreen, Screen, print_verdict
from statecore.cli.stage import Stage
from statecore.cli.story import Plan, Story
from statecore.cli.verdict import Verdict
from statecore.core import Statecore
from statecore.errors import SettingsError, StatecoreError
from statecore.settings import Settings

# Short enough to watch. Only on the demo's own servers: a worker's sweep covers every namespace it can see.
_SHORT = {"heartbeat_lost_after_s": 2.5, "inbox_ring_after_s": 1.0}

AsJson = Annotated[bool, typer.Option("--json", help="Only the verdict, as one JSON object; progress goes to stderr.")]
Agents = Annotated[int, typer.Option("--agents", min=3, max=100, help="How many agents.")]
Events = Annotated[int, typer.Option("--events", min=50, max=10_000, help="How many events they go through.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Repeat the choices of an earlier demo.")]


def demo(as_json: AsJson = False, agents: Agents = 6, events: Events = 600, seed: Seed = None) -> None:
    """Kill a worker, lose an agent, and see that nothing is lost or done twice. Needs nothing, takes about 20 seconds.

    It starts a Redis and a Postgres in a temporary folder, two Celery workers and beat; drives agents through their
    events; kills one worker with -9 while events are in flight; lets one agent fall silent until beat declares it lost
    and another agent gets its task; then lets the silent one report its output too late. The verdict is computed by
    replaying the audit stream through the transition table and comparing it with what was submitted and with the live
    records. At the end, and after Ctrl-C, everything it started is gone.

    Exit code: 0 the verdict holds, 1 it does not, 2 a server or worker failed, 130 interrupted.

    ```
    statecore demo
    statecore demo --json --events 2000 > verdict.json
    ```

    If STATECORE_REDIS_URL, STATECORE_DATABASE_URL and STATECORE_BROKER_URL are all set, it uses these servers, in a
    fresh namespace and under your own limits: with the default of 60 s an agent is lost after a minute. Take servers
    for testing, as the demo's workers take messages from all queues and one of them is killed.
    """
    plan = Plan(agents, events, random.randrange(2**32) if seed is None else seed)
    console = Console(stderr=as_json)
    began = time.monotonic()
    with Interrupts() as interrupts:
        try:
            verdict, story = _run(plan, _screen(console, as_json), interrupts)
            interrupts.pause(0)
        except (KeyboardInterrupt, StatecoreError) as error:
            if not interrupts.requested:
                raise
            console.print("Interrupted; everything the demo started is stopped and removed.", soft_wrap=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from error
    print_verdict(console, verdict)
    if as_json:
        result = {**verdict.as_json(), "facts": story.facts.as_json(), "seed": plan.seed}
        result["took_s"] = round(time.monotonic() - began, 1)
        Console(file=sys.stdout).print_json(data=result)
    raise typer.Exit(ExitCode.FINE if verdict.holds else ExitCode.VERDICT_FAILED)


def _screen(console: Console, as_json: bool) -> Screen:
    live = console.is_terminal and not console.is_dumb_terminal and not as_json
    return LiveScreen(console) if live else PlainScreen(console)


def _run(plan: Plan, screen: Screen, interrupts: Interrupts) -> tuple[Verdict, Story]:
    """The verdict, with everything stopped and removed again."""
    folder = Path(tempfile.mkdtemp(prefix="statecore-demo-"))
    cleanup = ExitStack()
    try:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        cleanup.enter_context(screen)
        sc = _connect(folder / "servers", screen, cleanup)
        interrupts.pause(0)
        if sc.agents.lifecycle is not AGENT_LIFECYCLE:
            raise SettingsError("the demo plays the built-in lifecycle; unset STATECORE_LIFECYCLE")
        stage = Stage(sc, CeleryProcesses(folder, sc.settings), screen, interrupts)
        cleanup.callback(stage.stop)
        story = Story(stage, plan)
        verdict = story.play()
        if not verdict.holds:
            screen.note(f"The logs of workers and beat are kept in {_keep_logs(folder)}.")
        return verdict, story
    finally:
        interrupts.shield()
        if interrupts.requested:
            screen.note("Interrupted: what was started is stopped.")
        cleanup.close()


def _keep_logs(folder: Path) -> str:
    kept = tempfile.mkdtemp(prefix="statecore-demo-logs-")
    for log in folder.glob("*.log"):
        shutil.copy(log, kept)
    return kept


def _connect(home: Path, screen: Screen, cleanup: ExitStack) -> Statecore:
    """The user's own servers if all three are named, else new ones in `home`."""
    namespace = f"demo-{random.randrange(16**6):06x}"
    own = Settings.load()
    if own.redis_url and own.database_url and own.broker_url:
        screen.note(
            f"Your own servers, namespace {namespace}, your limit of {own.heartbeat_lost_after_s:g} s for silence."
        )
        sc = cleanup.enter_context(Statecore.connect(namespace=namespace))
        cleanup.callback(_leave, sc)
        return sc
    screen.note(f"A Redis and a Postgres start in {home}.")
    # Not left to the last user alone: a start that was cut short may leave a server that nobody uses.
    cleanup.callback(EmbeddedServers(home).stop)
    return cleanup.enter_context(Statecore.embedded(home, namespace=namespace, **_SHORT))


def _leave(sc: Statecore) -> None:
    """No agent of the demo stays on the user's servers; its audit does."""
    for record in sc.agents.list(limit=1000):
        sc.agents.deregister(record.agent_id)
