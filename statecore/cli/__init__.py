"""The command line: `statecore --help`."""
