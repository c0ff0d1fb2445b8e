"""What only the conformance suites need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import redis_cluster


@pytest.fixture(scope="session")
def cluster_url(home: Path) -> Iterator[str]:
    """A real cluster of three nodes."""
    with redis_cluster(home / "cluster") as url:
        yield url
