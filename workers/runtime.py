"""What a worker process shares between its tasks: connections, namespaces, counters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from statecore.core import Statecore, effective_settings
from statecore.ids import check_id
from statecore.settings import Settings

_NAMESPACES_KEPT = 1000


class Runtime:
    """Made once per app; connects on first use in each process, so nothing is inherited by a fork but the plan."""

    def __init__(self, load_settings: Callable[[], Settings] = effective_settings) -> None:
        self._load_settings = load_settings
        self._settings: Settings | None = None
        self._home: Statecore | None = None
        self._namespaces: dict[str, Statecore] = {}
        self._lock = threading.Lock()
        self.counters: Counter[str] = Counter()

    @property
    def settings(self) -> Settings:
        """The settings, read once."""
        if self._settings is None:
            self._settings = self._load_settings()
        return self._settings

    def statecore(self, namespace: str | None = None) -> Statecore:
        """The namespace's control plane, by default the one of the settings."""
        with self._lock:
            if self._home is None:
                self._home = Statecore.connect(settings=self.settings)
            name = self._home.namespace if namespace is None else check_id("namespace", namespace)
            if name not in self._namespaces:
                if len(self._namespaces) >= _NAMESPACES_KEPT:
                    self._namespaces.clear()
                self._namespaces[name] = self._home.in_namespace(name)
            return self._namespaces[name]

    def each_namespace(self, namespace: str | None) -> list[Statecore]:
        """The one namespace, or all that were ever used for None."""
        names = self.statecore().namespaces() if namespace is None else [namespace]
        return [self.statecore(name) for name in names]

    def close(self) -> None:
        """Close the connections of this process."""
        with self._lock:
            if self._home is not None:
                self._home.close()
            self._home = None
            self._namespaces.clear()
