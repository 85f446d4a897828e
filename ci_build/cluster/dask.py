"""The import of Dask, which only clusters need, and its settings."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from ci_build.cluster.cluster_request import ClusterRequest
from core.errors import MachineError

HOW_TO_INSTALL = (
    "Run `.venv/bin/python -m pip install --require-hashes -r"
    " build/requirements-cluster.lock`."
)


def dask_module(name: str) -> Any:  # noqa: ANN401 - Dask's functions are typed in part
    """Return a module of Dask.

    Raises:
        MachineError: the packages for clusters are not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MachineError(
            f"A cluster needs packages that are not installed: {error.name}.",
            hint=HOW_TO_INSTALL,
        ) from error


def security_of(request: ClusterRequest) -> Any:  # noqa: ANN401 - a class of Dask
    """Return Dask's settings for certificates; None without TLS."""
    if not request.ca:
        return None
    own = {
        f"tls_{role}_{part}": value
        for role in ("client", "scheduler", "worker")
        for part, value in (
            ("cert", request.cert),
            ("key", request.key or request.cert),
        )
    }
    return dask_module("distributed").Security(
        require_encryption=True, tls_ca_file=request.ca, **own
    )


def quiet() -> None:
    """Keep Dask's own messages out of the output; this program reports failures itself."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
