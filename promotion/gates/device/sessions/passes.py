"""Passes of a suite, the plan and the report of a run, and the command of each session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from core.frozen import frozen
from core.model import Finding
from promotion.evidence.test_results import TestResult
from promotion.gates.device.lease import DEVICE_SHARE, JaxPlatform, Lease
from promotion.gates.device.results import Attempt
from promotion.gates.device.sessions.session import SessionLimits

SESSION = "JAX_GATE_SESSION"
"""Variable with the session's folder.

The plugin defines the same name, but its import would need pytest.
"""
MARK = "multiaccelerator"
"""Mark of JAX's suite for tests that need several devices."""
ALL, SINGLE, MULTI = "all", "single", "multi"
"""Names of passes: all tests, tests of one device, tests of several devices."""
PLUGIN = "jax_release_device_gate"
"""Name under which a session imports the plugin."""
PLUGIN_FOLDER = Path(__file__).parents[1] / "plugin"
LAUNCHER = PLUGIN_FOLDER / "launcher.py"
MOST_LEFT = DEVICE_SHARE // 2
"""Bytes of arrays that a test may leave alive, and of a device that a test or the run may lose.

More would leave too little memory to later tests.
"""
VIRTUAL_DEVICES = 8
_OURS = ("JAX_ENABLE_ROCM_XDIST", "JAX_ENABLE_CUDA_XDIST", "JAX_ENABLE_TPU_XDIST")
"""Variables that make JAX's conftest.py assign devices to workers, which the gate does itself."""
_OTHERS = (
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "PYTEST_XDIST_TESTRUNUID",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
)
"""Variables of an outer pytest or of the user, which would change the session."""


@frozen
class Pass:
    """Tests that run under the same conditions.

    Attributes:
        name: name of the pass, such as single.
        marks: pytest's mark expression; empty selects all tests.
        leases: a lease for each worker.
    """

    name: str
    marks: str
    leases: tuple[Lease, ...]


@frozen
class Suite:
    """Test files on disk.

    Attributes:
        root: working folder of pytest; node ids are relative to it.
        files: files and folders for pytest, relative to the root.
        env: environment that the suite requires.
        deselect: node ids, or their beginnings, that the suite itself leaves out.
        commit: commit of the suite, or a digest of its files.
        notes: remarks for the evidence.
        warnings: findings about the suite, which are shown.
        checkout: origin of the suite; None for the smoke suite.
    """

    root: Path
    files: tuple[str, ...]
    env: Mapping[str, str]
    deselect: tuple[str, ...] = ()
    commit: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()
    checkout: Path | None = None


def passes(
    names: Sequence[str], single: Sequence[Lease], whole: Lease
) -> tuple[Pass, ...]:
    """Return the passes with these names.

    Args:
        single: a lease for each worker.
        whole: the lease of all devices.
    """
    made = []
    for name in names:
        marks = {ALL: "", SINGLE: f"not {MARK}", MULTI: MARK}[name]
        leases = (whole,) if name == MULTI else tuple(single)
        made.append(Pass(name=name, marks=marks, leases=leases))
    return tuple(made)


def base_env(platform: JaxPlatform, suite: Mapping[str, str]) -> dict[str, str]:
    """Return variables for all processes.

    The suite's variables win, except variables that assign devices.
    """
    env = {"PYTHONNOUSERSITE": "1", "PYTHONFAULTHANDLER": ""}
    env["JAX_PLATFORMS"] = "cpu" if platform is JaxPlatform.CPU else f"{platform},cpu"
    if platform is not JaxPlatform.CPU:
        # By default, JAX preallocates most of a device, which leaves nothing to other
        # workers and hides leaks.
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if platform is JaxPlatform.ROCM:
        # Intercepted or dynamic queues, and reclaimed scratch memory, cause sporadic
        # failures.
        env |= {"HSA_NO_SCRATCH_RECLAIM": "1", "DEBUG_HIP_DYNAMIC_QUEUES": "0"}
    env |= {name: value for name, value in suite.items() if name not in _OURS}
    if platform is JaxPlatform.CPU:
        flag = f"--xla_force_host_platform_device_count={VIRTUAL_DEVICES}"
        env["XLA_FLAGS"] = f"{suite.get('XLA_FLAGS', '')} {flag}".strip()
    return env


def session_env(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a session.

    Args:
        env: environment of the site and the suite.
        folder: folder of the session, which also contains the plugin.
    """
    ours = {SESSION: str(folder), "PYTEST_PLUGINS": PLUGIN, "PYTHONPATH": str(folder)}
    return {**env, **dict.fromkeys(_OTHERS, ""), **ours}


def session_argv(
    python: Sequence[str],
    suite: Suite,
    pass_: Pass,
    *,
    workers: int,
    files: Sequence[str],
) -> list[str]:
    """Return the command of a session.

    Args:
        python: interpreter with its options.
        workers: number of pytest-xdist workers; 0 runs the tests in one process without
            xdist.
        files: files to collect, relative to the suite's root.
    """
    argv = [
        *(*python, "-I", str(LAUNCHER), "controller" if workers else "solo"),
        *python,
        "-m",
        "pytest",
        "--quiet",
        "--quiet",
        "--no-summary",
        "--tb=short",
        "--color=no",
        "-p",
        "no:cacheprovider",
        f"--rootdir={suite.root}",
        "--continue-on-collection-errors",
        "--maxfail=0",
    ]
    if workers:
        argv += [
            f"--numprocesses={workers}",
            "--dist=worksteal",
            f"--max-worker-restart={1 << 30}",
        ]
    argv += [f"--deselect={test}" for test in suite.deselect]
    if pass_.marks:
        argv.append(f"-m={pass_.marks}")
    return [*argv, *files]


def session_plan(
    run: RunPlan,
    leases: Sequence[Lease],
    *,
    only: Sequence[str] | None,
    broken: Sequence[str],
    solo: bool,
) -> dict[str, Any]:
    """Return the plan that the plugin reads; the plugin documents its fields."""
    return {
        "leases": [asdict(lease) for lease in leases],
        "only": None if only is None else sorted(only),
        "listed": run.listed,
        "shard": run.shard,
        "broken": sorted(broken),
        "solo": solo,
        "most_left": MOST_LEFT,
    }


@frozen
class RunPlan:
    """Plan of a run.

    Attributes:
        python: interpreter with its options.
        env: changes to the environment of all processes.
        listed: tests to run; of files without a listed test, all tests run.
        shard: number of the shard, and number of all shards.
        retries: maximum number of failed tests, or of causes of failures, to retry in
            fresh processes; with more failures, retries would add no information. 0
            retries none.
        free_memory: function that returns device -> free bytes; on a CPU, the device is
            "" and the memory is RAM.
    """

    python: tuple[str, ...]
    suite: Suite
    env: Mapping[str, str]
    passes: tuple[Pass, ...]
    listed: tuple[str, ...] = ()
    shard: tuple[int, int] = (1, 1)
    limits: SessionLimits = field(default_factory=SessionLimits)
    retries: int = 40
    free_memory: Callable[[], Mapping[str, int]] = dict


@frozen
class RunReport:
    """Report of a run.

    Attributes:
        results: results of every chosen test, and of files that could not be collected,
            sorted by id.
        collected: all tests, chosen or not.
        problems: reasons why passes are incomplete; empty if all passes are complete.
        notes: remarks for the evidence.
        warnings: findings about the run, which are shown.
        sessions: number of sessions.
        attempts: attempts at each test, in order.
    """

    results: tuple[TestResult, ...]
    collected: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    sessions: int
    attempts: Mapping[str, tuple[Attempt, ...]] = field(default_factory=dict)
    warnings: tuple[Finding, ...] = ()
