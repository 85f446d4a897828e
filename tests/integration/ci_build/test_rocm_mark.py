"""The ROCm that compiled a wheel must match the request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import RepairError
from core.model import RocmVersion
from plugin.recipe import repair_plan
from tests.support.sets import published_request
from wheelkit.repair.repair import repair


@pytest.mark.parametrize("text", ["7.2.0", "7.2.0rc1"])
def test_the_rocm_that_compiled_it_is_accepted(real_wheel: Callable[..., Path], tmp_path: Path, text: str) -> None:
    request = published_request("gfx942", rocm_version=RocmVersion(text=text))
    plan = repair_plan(request, "0.10.2+rocm7.2.0")
    assert repair(real_wheel("jax-rocm7-plugin", "0.10.2"), plan, tmp_path).path.is_file()


@pytest.mark.parametrize("text", ["7.2.1", "7.10.0a20251120"])
def test_another_rocm_is_refused_by_name(real_wheel: Callable[..., Path], tmp_path: Path, text: str) -> None:
    request = published_request("gfx942", rocm_version=RocmVersion(text=text))
    with pytest.raises(RepairError, match=r"_linalg\.so was compiled with ROCm 7\.2\.0, not 7\.") as caught:
        repair(real_wheel("jax-rocm7-plugin", "0.10.2"), repair_plan(request, "0.10.2+rocm7"), tmp_path)
    assert "--rocm-version=7.2.0" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
