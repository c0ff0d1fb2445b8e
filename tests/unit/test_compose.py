"""docker-compose.yml, checked without an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from statecore.settings import Settings

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(COMPOSE)
    return loaded


def test_it_follows_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_service_waits_for_services_that_exist_and_can_be_waited_for(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}, which does not exist"
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}, which has no check"


def test_its_environment_is_a_valid_configuration(compose: dict[str, Any]) -> None:
    for name in ("migrate", "worker", "beat", "flower"):
        environment = compose["services"][name]["environment"]
        settings = Settings.load(**{key.removeprefix("STATECORE_").lower(): text for key, text in environment.items()})
        assert settings.redis_url != settings.broker_url, "a flushed broker must not take the store with it"


def test_redis_keeps_every_key_and_survives_a_restart(compose: dict[str, Any]) -> None:
    command = " ".join(compose["services"]["redis"]["command"])
    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly yes" in command


def test_nothing_listens_beyond_this_host(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
