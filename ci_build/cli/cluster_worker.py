"""Preload of `dask worker`: the functions of tasks, and what a worker offers for them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci_build.cli.options.environment import (
    ENV_PREFIX,
    cache_folder,
    child_environment,
)
from ci_build.cluster.worker import TaskWorker
from ci_build.release import device_cluster
from ci_build.rocm.tree import read_tree
from core.errors import CiBuildError
from core.memory import available_memory
from core.model import KernelRequest
from core.report import NoProgress
from core.tasks import TaskContext, TaskFunction, WorkerUnfitError
from kernels.api import KIND as KERNEL_STEP
from kernels.api import Toolchain, compile_step, context_in, toolchain_for
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.compile.remote_compile import KIND as COMPILE_PROGRAMS
from promotion.gates.compile.remote_compile import compile_programs, site_of

_trees: dict[str, RocmTree] = {}
_toolchains: dict[KernelRequest, Toolchain] = {}
# The digest of a ROCm takes seconds: a process computes it once.
_lock = threading.Lock()


def _kernel_step(arguments: Mapping[str, Any], context: TaskContext) -> None:
    """Compile kernels with this worker's toolchain of the kind that a client uses.

    Raises:
        WorkerUnfitError: this worker does not have it.
    """
    request = KernelRequest(
        toolchain=arguments["toolchain"],
        rocm=arguments.get("rocm", ""),
    )
    with _lock:
        if request not in _toolchains:
            try:
                _toolchains[request] = toolchain_for(
                    request, context_in(context.cache, context.runner, NoProgress())
                )
            except CiBuildError as error:
                raise WorkerUnfitError(
                    f"it has no toolchain {request.toolchain}: {error}"
                ) from error
        toolchain = _toolchains[request]
    compile_step(arguments, context, toolchain)


def _rocm_tree(folder: str, sha256: str) -> RocmTree:
    """Return the ROCm of this worker.

    Raises:
        WorkerUnfitError: it is another one than the client's.
    """
    with _lock:
        if folder not in _trees:
            try:
                manifest, _ = read_tree(
                    Path(folder), unknown="of unknown version", progress=NoProgress()
                )
            except (CiBuildError, OSError) as error:
                raise WorkerUnfitError(
                    f"it has no ROCm in {folder}: {error}"
                ) from error
            _trees[folder] = RocmTree(folder=Path(folder), manifest=manifest)
        tree = _trees[folder]
    if tree.sha256 != sha256:
        raise WorkerUnfitError(f"its ROCm in {folder} differs from the client's.")
    return tree


def _compile_programs(arguments: Mapping[str, Any], context: TaskContext) -> object:
    """Compile programs with the wheels of a task and this worker's ROCm."""
    rocm = arguments["rocm"]
    tree = _rocm_tree(rocm["folder"], rocm["sha256"]) if rocm else None
    site = site_of(arguments, context, tree, NoProgress())
    return compile_programs(arguments, context, site)


FUNCTIONS: dict[str, TaskFunction] = {
    KERNEL_STEP: _kernel_step,
    COMPILE_PROGRAMS: _compile_programs,
    device_cluster.KIND: device_cluster.run_shard,
}
"""Kind of a task -> its function."""


async def dask_setup(worker: Any) -> None:  # noqa: ANN401 - a class of Dask
    """Prepare a worker; Dask calls this function before the worker gets tasks."""
    environment = child_environment()
    cache = Path(environment.get(f"{ENV_PREFIX}CACHE_DIR") or cache_folder()[0])
    limit = worker.memory_manager.memory_limit
    own = TaskWorker(
        FUNCTIONS,
        cache=cache.absolute() / "cluster",
        environment=environment,
        memory_mb=limit >> 20 if limit else available_memory() >> 20,
    )
    own.cache.mkdir(parents=True, exist_ok=True)
    await worker.plugin_add(own, name=TaskWorker.__name__, catch_errors=False)
