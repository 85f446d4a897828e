"""What is run: the passes of a suite, and the command and environment of each session. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promotion.evidence.known_tests import regex_of
from promotion.gates.device.lease import DEVICE_SHARE, JaxPlatform, Lease

SESSION = "JAX_GATE_SESSION"
"""Names the folder of a session to our plugin, which has pytest to import and so is not imported here."""
MARK = "multiaccelerator"
"""The mark of JAX's suite for tests that need more than one device."""
ALL, SINGLE, MULTI = "all", "single", "multi"
"""Passes: of all tests, of those that need one device, of those that need several."""
PLUGIN = "jax_release_device_gate"
"""The name under which a session imports our plugin."""
PLUGIN_FOLDER = Path(__file__).parents[1] / "plugin"
MOST_LEFT = DEVICE_SHARE // 2
"""Bytes of arrays that a test may leave alive: more would take the tests after it what they count on."""
VIRTUAL_DEVICES = 8
_LAUNCH = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]) % 256)"
_LAZY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Three quarters of a device taken at once would leave nothing to its other workers, and hide what tests use up."""
_OURS = ("JAX_ENABLE_ROCM_XDIST", "JAX_ENABLE_CUDA_XDIST", "JAX_ENABLE_TPU_XDIST")
"""Make JAX's own conftest.py lend devices to workers: only one may do that."""
_OTHERS = (
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "PYTEST_XDIST_TESTRUNUID",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
)
"""Of a pytest that runs us, or a person's own: with them a session would take itself for a worker of another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Tests that run under the same conditions.

    Attributes:
        name: such as single.
        marks: pytest's expression that chooses its tests; empty takes all.
        leases: one for each worker.
    """

    name: str
    marks: str
    leases: tuple[Lease, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """Tests that are known not to work, and who says so.

    Attributes:
        pattern: as in the ledgers, see `known_tests.regex_of`.
        entry: id of the ledger's entry.
    """

    pattern: str
    entry: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Tests as they lie on disk.

    Attributes:
        root: where pytest is started; node ids are relative to it.
        files: what it is given: files and folders relative to the root.
        env: what the suite wants to be run with.
        deselect: node ids, or beginnings of some, that the suite itself leaves out.
        commit: which suite it is: a commit, or a digest of its files.
    """

    root: Path
    files: tuple[str, ...]
    env: Mapping[str, str]
    deselect: tuple[str, ...] = ()
    commit: str = ""


def passes(names: Sequence[str], single: Sequence[Lease], whole: Lease) -> tuple[Pass, ...]:
    """The passes of these names.

    Args:
        names: some of ALL, SINGLE and MULTI.
        single: a lease for each worker.
        whole: the lease of all devices.
    """
    made = {
        ALL: Pass(name=ALL, marks="", leases=tuple(single)),
        SINGLE: Pass(name=SINGLE, marks=f"not {MARK}", leases=tuple(single)),
        MULTI: Pass(name=MULTI, marks=MARK, leases=(whole,)),
    }
    return tuple(made[name] for name in names)


def base_env(platform: JaxPlatform, suite: Mapping[str, str]) -> dict[str, str]:
    """What all processes of a run have on top of the site's environment; the suite has the last word but for leases."""
    env = {"PYTHONNOUSERSITE": "1", "PYTHONFAULTHANDLER": ""}
    match platform:
        case JaxPlatform.CPU:
            flag = f"--xla_force_host_platform_device_count={VIRTUAL_DEVICES}"
            flags = suite.get("XLA_FLAGS", "")
            env |= {"JAX_PLATFORMS": "cpu"}
            return {**env, **_without_ours(suite), "XLA_FLAGS": f"{flags} {flag}".strip()}
        case JaxPlatform.ROCM:
            # Queues that are intercepted or chosen anew, and scratch that is given back, make sporadic failures.
            env |= {
                "JAX_PLATFORMS": "rocm,cpu",
                "HSA_NO_SCRATCH_RECLAIM": "1",
                "DEBUG_HIP_DYNAMIC_QUEUES": "0",
                **_LAZY,
            }
        case JaxPlatform.CUDA:
            env |= {"JAX_PLATFORMS": "cuda,cpu", **_LAZY}
    return {**env, **_without_ours(suite)}


def _without_ours(suite: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in suite.items() if name not in _OURS}


def session_env(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of a session.

    Args:
        env: the site's and the suite's.
        folder: of the session, where the plugin lies too.
    """
    ours = {SESSION: str(folder), "PYTEST_PLUGINS": PLUGIN, "PYTHONPATH": str(folder)}
    return {**env, **dict.fromkeys(_OTHERS, ""), **ours}


def session_argv(python: Sequence[str], suite: Suite, pass_: Pass, *, workers: int, files: Sequence[str]) -> list[str]:
    """The command of a session.

    Args:
        python: interpreter with its options.
        suite: what to run.
        pass_: how.
        workers: at once, each a process of pytest-xdist's; 0 runs the tests in one process without it.
        files: to collect; relative to the suite's root.
    """
    # A test may kill its parent; that must not be us.
    launch = [] if workers else [*python, "-I", "-c", _LAUNCH]
    argv = [*launch, *python, "-m", "pytest", "--quiet", "--quiet", "--no-summary", "--tb=short", "--color=no"]
    argv += ["-p", "no:cacheprovider", f"--rootdir={suite.root}", "--continue-on-collection-errors", "--maxfail=0"]
    argv += [f"--numprocesses={workers}", "--dist=worksteal", f"--max-worker-restart={1 << 30}"] if workers else []
    argv += [f"--deselect={test}" for test in suite.deselect]
    argv += [f"-m={pass_.marks}"] if pass_.marks else []
    return [*argv, *files]


def session_plan(
    pass_: Pass,
    *,
    only: Sequence[str] | None = None,
    broken: Sequence[str] = (),
    skips: Sequence[Skip] = (),
    solo: bool = False,
    most_left: int,
    gate: int,
) -> dict[str, Any]:
    """What the plugin is told; see there.

    Args:
        most_left: bytes of arrays that a test may leave alive.
        gate: process id of this program: workers that it cannot watch any more end.
    """
    leases = [
        {
            "slot": lease.slot,
            "device": lease.device,
            "cpus": list(lease.cpus),
            "env": dict(lease.env),
            "nodes": list(lease.nodes),
            "gauges": [list(gauge) for gauge in lease.gauges],
        }
        for lease in pass_.leases
    ]
    skipped = [{"regex": regex_of(skip.pattern), "entry": skip.entry, "reason": skip.reason} for skip in skips]
    told = {"only": None if only is None else sorted(only), "broken": sorted(broken)}
    limits = {"gate": gate, "most_left": most_left, "least_free": DEVICE_SHARE}
    return {"pass": pass_.name, "leases": leases, **told, "skips": skipped, "solo": solo, **limits}
