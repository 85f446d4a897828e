"""Checks of the load gate, without running probes."""

from __future__ import annotations

import pytest

from promotion.gates.common.site import NO_DEVICE
from promotion.gates.load.checks import PJRT, PLUGIN, WheelLibrary, check_loader
from promotion.gates.load.child_probe import ProbeResult, how_it_ended
from tests.support.sets import wheel

LIBRARY = WheelLibrary(
    wheel=wheel("jax_rocm7_pjrt-1-py3-none-any.whl", "jax-rocm7-pjrt", "1"),
    path="jax_plugins/xla_rocm7/xla_rocm_plugin.so",
)
SENTENCE = "jax-rocm7-pjrt 0.10.2 cannot use ROCm: no AMD GPU was found (looked at /dev/kfd). Load the driver."


@pytest.mark.parametrize(
    ("said", "good"),
    [
        ("FAILED_PRECONDITION: No visible GPU devices.", True),
        ("FAILED_PRECONDITION: No visible GPU devices", True),
        ("INTERNAL: No visible GPU devices.", False),
        ("FAILED_PRECONDITION: No visible GPU devices. And more", False),
        ("", False),
    ],
)
def test_no_device_matches_exact_error(said: str, good: bool) -> None:
    assert bool(NO_DEVICE.fullmatch(said)) == good


@pytest.mark.parametrize(
    ("answer", "ours", "codes"),
    [
        ({"error": f"Backend 'rocm' failed to initialize: {SENTENCE}"}, True, []),
        ({"error": "FAILED_PRECONDITION: No visible GPU devices."}, True, []),
        ({"devices": 8}, True, []),
        ({"error": "Unknown backend rocm. Available backends are ['cpu']"}, True, ["loader-silent"]),
        ({"devices": 0}, True, ["loader-silent"]),
        ({"error": "Unknown backend rocm. Available backends are ['cpu']"}, False, []),
    ],
)
def test_check_loader_requires_reason(answer: dict[str, object], ours: bool, codes: list[str]) -> None:
    findings = list(check_loader(LIBRARY, ours, ProbeResult(values=answer)))
    assert [finding.code for finding in findings] == codes
    assert all(finding.member == LIBRARY.path and LIBRARY.wheel.filename in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("jax_rocm7_plugin/_solver.so", ("jax_rocm7_plugin", "_solver")),
        ("jax_rocm10_plugin/_rnn.cpython-312-x86_64-linux-gnu.so", ("jax_rocm10_plugin", "_rnn")),
        ("jax_plugins/xla_rocm10/xla_rocm_plugin.so", ("xla_rocm10", "xla_rocm_plugin")),
        ("jaxlib/libjax_common.so", None),
        ("jax_rocm7_plugin/sub/_solver.so", None),
    ],
)
def test_patterns_match_plugin_and_pjrt_paths(path: str, found: tuple[str, str] | None) -> None:
    match = PLUGIN.fullmatch(path) or PJRT.fullmatch(path)
    assert (match.groups() if match else None) == found


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(-8, "signal SIGFPE"), (-6, "signal SIGABRT"), (127, "exit code 127"), (-50, "signal 50")],
)
def test_how_it_ended_names_signals(returncode: int, words: str) -> None:
    assert how_it_ended(returncode) == words
