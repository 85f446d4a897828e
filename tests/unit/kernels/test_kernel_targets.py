"""Lists of targets for kernel builds."""

from __future__ import annotations

import pytest

from core import targets
from core.errors import RequestError


@pytest.mark.parametrize("spec", ["gfx942;gfx950", "gfx942:gfx950", "gfx942|gfx950"])
def test_expand_refuses_other_separators(spec: str) -> None:
    with pytest.raises(RequestError, match="gfx950"):
        targets.expand(spec)
