"""Ctrl-C and its relatives as a flag: no step is cut in half, so every step's cleanup knows what it has to clean."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While it is entered, the first signal is noted and a second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._shielded = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._requested.is_set()

    def pause(self, seconds: float) -> None:
        """Wait that long; KeyboardInterrupt as soon as a signal came."""
        if self._requested.wait(seconds):
            raise KeyboardInterrupt

    def shield(self) -> None:
        """From now on signals change nothing: what follows is the cleanup, which is bounded by itself."""
        self._shielded = True

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        again = self._requested.is_set()
        self._requested.set()
        if again and not self._shielded:
            raise KeyboardInterrupt
