"""A call that has to end with an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kernels_fake.calls import CallError


def refused(work: Callable[[], None], code: int, *words: str) -> None:
    with pytest.raises(CallError) as caught:
        work()
    for word in words:
        assert word in caught.value.message
    assert caught.value.code == code, caught.value.message
