"""Headlines and causes of failures."""

from __future__ import annotations

from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.results import by_cause, cause_of
from tests.support.device_results import result

CRASH = """Its process died: Segmentation fault.
Current thread 0x00007f1 (most recent call first):
  File "{file}", line 3 in f
"""


def test_cause_of_ignores_addresses_and_distinguishes_places_of_crashes() -> None:
    assert cause_of("E   fault at 0x7f00 in 123456") == cause_of(
        "E   fault at 0x8000 in 654321"
    )
    assert cause_of("E   1 != 2") != cause_of("E   1 != 3")
    assert cause_of(CRASH.format(file="a.py")) != cause_of(CRASH.format(file="b.py"))


def test_by_cause_lists_most_frequent_cause_first() -> None:
    one, *more = [
        result(f"t{n}", TestVerdict.FAILED, f"E   {text}")
        for n, text in enumerate(("rare", "often", "often"))
    ]
    crash = result("dead", TestVerdict.CRASHED, "E   often")
    assert list(by_cause([one, crash, *more]).values()) == [
        more,
        [one],
        [crash],
    ]
