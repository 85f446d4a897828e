"""Settings of the PEP 517 backend of jax_aiter, in a process of its own.

Setuptools replaces distutils, and pip not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BACKEND = Path(__file__).resolve().parents[3] / "kernels" / "pep517"
SCRIPT = """
import json, sys
import backend

def refusal(hook, settings):
    try:
        getattr(backend, hook)("unused", settings)
    except backend.RequestError as error:
        return str(error)

hooks, cases = json.load(sys.stdin)
refused = {hook: [refusal(hook, settings) for settings in cases] for hook in hooks}
with backend._hook({"targets": ["gfx942", "gfx1100"]}):
    print(json.dumps([refused, backend.arguments()["version"]]))
"""
HOOKS = ("prepare_metadata_for_build_wheel", "build_wheel", "build_sdist")
CASES: list[tuple[dict[str, Any], str]] = [
    ({"target": "gfx942"}, "no setting target. Valid settings: targets, modules"),
    ({"--build-option": "--targets=gfx942"}, "no setting --build-option"),
    ({"files": "x"}, "files and version need each other"),
    ({"version": "1"}, "files and version need each other"),
    ({"allow-partial": "yes"}, "allow-partial is invalid: 'yes'. Write true or false"),
]


@pytest.fixture(scope="module")
def answers() -> Any:
    given = json.dumps([HOOKS, [settings for settings, _ in CASES]])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        cwd=BACKEND,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("hook", HOOKS)
def test_backend_refuses_invalid_settings(answers: Any, hook: str) -> None:
    for (_, said), answer in zip(
        CASES,
        answers[0][hook],
        strict=True,
    ):
        assert said in answer


def test_backend_joins_repeated_settings(answers: Any) -> None:
    assert answers[1].endswith("+gfx942.gfx1100")
