"""Clusters that a client starts itself, for as long as it runs: schedulers of batch systems."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ci_build.cluster.request import ClusterRequest
from core.model import Progress

Launcher = Callable[[ClusterRequest, Progress], AbstractContextManager[Any]]
"""Starts a cluster; its context is what `distributed.Client` takes as address."""
LAUNCHERS: dict[str, Launcher] = {}
"""Value of `--cluster` -> launcher."""
