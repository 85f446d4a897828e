"""Lists of targets for kernel builds."""

from __future__ import annotations

import pytest

from core import targets
from core.errors import RequestError


@pytest.mark.parametrize("spec", ["gfx942;gfx950", "gfx942:gfx950", "gfx942|gfx950"])
def test_targets_that_are_joined_otherwise_are_refused(spec: str) -> None:
    with pytest.raises(RequestError, match="gfx950"):
        targets.expand(spec)
