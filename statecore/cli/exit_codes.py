"""What the command's exit codes mean."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    FINE = 0
    VERDICT_FAILED = 1
    ERROR = 2
    INTERRUPTED = 130
