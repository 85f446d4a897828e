"""JUnit XML for CI services.

Only elements that Jenkins, GitLab and GitHub Actions all understand are used:
`testsuites`, `testsuite`, `testcase`, `failure`, `error` and `skipped`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids; the output of a crashed process may contain them."""


def document(name: str, suites: Iterable[ET.Element]) -> bytes:
    """Return an XML document with these suites."""
    root = ET.Element("testsuites", name=name)
    root.extend(suites)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def make_suite(
    name: str, cases: Sequence[ET.Element], seconds: float, **attributes: str
) -> ET.Element:
    """Return a suite of these cases, with the numbers of tests, failures, errors and skips."""
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    numbers = {"tests": str(len(cases))}
    for count, kind in kinds.items():
        numbers[count] = str(sum(case.find(kind) is not None for case in cases))
    numbers["time"] = f"{seconds:.3f}"
    suite = ET.Element("testsuite", {"name": clean(name), **numbers, **attributes})
    suite.extend(cases)
    return suite


def clean(text: str) -> str:
    """Replace characters that XML forbids."""
    return _NOT_XML.sub("�", text)
