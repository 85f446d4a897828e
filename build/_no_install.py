"""The build backend of this checkout, which pip cannot install: `ci_build` runs from it."""

from __future__ import annotations

from typing import NoReturn


def _refuse(*_: object, **__: object) -> NoReturn:
    raise SystemExit(
        "jax-rocm-release is not installed but run from its clone:"
        " `python3 build/ci_build --help`."
    )


build_wheel = build_sdist = build_editable = _refuse
get_requires_for_build_wheel = get_requires_for_build_editable = _refuse
