"""Sizes in the syntax of container engines.

`tests/unit/ci_build/test_rocm_facts.py` has sizes of files.
"""

from __future__ import annotations

import pytest

from core.errors import RequestError
from core.units import check_engine_size


def test_engine_size_refuses_other_text() -> None:
    assert check_engine_size("1.5gb", "--memory") == "1.5gb"
    with pytest.raises(RequestError, match="is not a size for container engines"):
        check_engine_size("64x", "--memory")
