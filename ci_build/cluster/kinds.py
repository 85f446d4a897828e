"""Functions of the tasks that a worker runs, by kind."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci_build.release import device_cluster
from ci_build.rocm.tree import read_tree
from ci_build.wheelset.kernel_compilers import find_compilers
from core.errors import CiBuildError
from core.model import KernelRequest
from core.report import NoProgress
from core.tasks import TaskContext, TaskFunction, WorkerUnfitError
from kernels.api import KIND as KERNEL_STEP
from kernels.api import Toolchain, compile_step, toolchain_for
from promotion.gates.common.gate_rocm import RocmTree
from promotion.gates.common.gate_site import RocmLibraries, Site
from promotion.gates.compile.remote_compile import KIND as COMPILE_PROGRAMS
from promotion.gates.compile.remote_compile import compile_programs, site_of
from promotion.gates.device import device_cluster as device_gate

_trees: dict[str, RocmTree] = {}
_toolchains: dict[KernelRequest, Toolchain] = {}
_lock = threading.Lock()


def _toolchain(arguments: Mapping[str, Any], context: TaskContext) -> Toolchain:
    """Return this worker's toolchain of the kind that a client uses.

    Raises:
        WorkerUnfitError: this worker does not have it.
    """
    request = KernelRequest(
        toolchain=arguments["toolchain"],
        rocm=arguments.get("rocm", ""),
        image=arguments.get("image", ""),
    )
    with _lock:  # once per process: the digest of a ROCm takes seconds
        if request not in _toolchains:
            try:
                place = find_compilers(
                    request, context.cache, context.runner, inputs=context.cache
                )
                cache = context.cache / "kernels"
                _toolchains[request] = toolchain_for(
                    request, cache, context.runner, NoProgress(), place
                )
            except CiBuildError as error:
                raise WorkerUnfitError(
                    f"it has no toolchain {request.toolchain}: {error}"
                ) from error
        return _toolchains[request]


def _kernel_step(arguments: Mapping[str, Any], context: TaskContext) -> object:
    return compile_step(arguments, context, _toolchain)


def _site(
    arguments: Mapping[str, Any], context: TaskContext
) -> tuple[Site, RocmLibraries]:
    """Return this worker's environment with the wheels of a task, and its ROCm.

    Raises:
        WorkerUnfitError: this worker has another ROCm than the client.
    """
    rocm = arguments["rocm"]
    if not rocm:
        return site_of(arguments, context, None, NoProgress())
    with _lock:
        if rocm["folder"] not in _trees:
            try:
                manifest, _ = read_tree(
                    Path(rocm["folder"]),
                    unknown="of unknown version",
                    progress=NoProgress(),
                )
            except (CiBuildError, OSError) as error:
                raise WorkerUnfitError(
                    f"it has no ROCm in {rocm['folder']}: {error}"
                ) from error
            _trees[rocm["folder"]] = RocmTree(
                folder=Path(rocm["folder"]), manifest=manifest
            )
        tree = _trees[rocm["folder"]]
    if tree.sha256 != rocm["sha256"]:
        raise WorkerUnfitError(f"its ROCm in {tree.folder} differs from the client's.")
    return site_of(arguments, context, tree, NoProgress())


def _compile_programs(arguments: Mapping[str, Any], context: TaskContext) -> object:
    return compile_programs(arguments, context, _site)


KINDS: dict[str, TaskFunction] = {
    KERNEL_STEP: _kernel_step,
    COMPILE_PROGRAMS: _compile_programs,
    device_gate.KIND: device_cluster.run_shard,
}
"""Kind of a task -> its function.

Imports are visible, so that import contracts cover what workers run.
"""
