"""Threads that begin and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable

_JOIN_S = 10.0


class Crew:
    """Each member runs until it is done or `stopping` is set; the first member's error reaches whoever calls check."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def start(self, name: str, work: Callable[[threading.Event], None]) -> None:
        """Run the work in a thread; it must return soon after its event is set."""
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Raise the first error that a member met."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Return when all members are done."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _run(self, work: Callable[[threading.Event], None]) -> None:
        try:
            work(self.stopping)
        except BaseException as error:  # noqa: BLE001 - check() raises it where somebody can act on it
            self._error = self._error or error
