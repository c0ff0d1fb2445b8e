"""The entry of the command `statecore`."""

from __future__ import annotations

import sys

from statecore.cli.exit_codes import ExitCode


def main() -> None:
    """Run the command line. What it needs is imported here, so that Ctrl-C while it loads is clean too."""
    try:
        from statecore.cli.commands import app

        app(prog_name="statecore")
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
