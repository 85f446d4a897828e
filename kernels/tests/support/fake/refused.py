"""Context manager for a call that must return an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kernels.tests.support.fake.calls import CallError


@contextmanager
def refused(code: int, *words: str) -> Iterator[None]:
    with pytest.raises(CallError) as caught:
        yield
    assert [word for word in words if word not in caught.value.message] == []
    assert caught.value.code == code, caught.value.message
