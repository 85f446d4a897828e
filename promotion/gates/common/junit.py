"""Evidence as JUnit XML for CI services: a suite for each gate and target, a case for each check.

Only elements that Jenkins, GitLab and GitHub Actions all understand are used:
`testsuites`, `testsuite`, `testcase`, `failure`, `error` and `skipped`. A known failure
counts as skipped, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from xml.etree import ElementTree as ET

from core.model import Evidence, Outcome, Severity

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids; the output of a crashed process may contain them."""
_ITSELF = "the gate itself"


def junit(evidences: Iterable[Evidence]) -> bytes:
    """Return the XML document for evidence."""
    return document("gates", map(_suite, evidences))


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


def _suite(evidence: Evidence) -> ET.Element:
    name = f"{evidence.gate}.{evidence.target}"
    checks = evidence.details.get("checks", ())
    cases = [_check_case(name, check) for check in checks]
    if evidence.outcome is Outcome.ERROR:
        cases.insert(0, _gate_case(name, evidence, checks))
    begun, ended = (
        datetime.fromisoformat(text) for text in (evidence.started, evidence.ended)
    )
    properties = ET.Element("properties")
    facts = {
        "set": evidence.set_digest,
        "tier": evidence.tier.value,
        "machine": evidence.machine,
        **evidence.settings,
    }
    for key, value in facts.items():
        ET.SubElement(properties, "property", name=clean(key), value=clean(str(value)))
    suite = make_suite(
        name,
        cases,
        (ended - begun).total_seconds(),
        timestamp=begun.strftime("%Y-%m-%dT%H:%M:%S"),
    )
    suite.insert(0, properties)
    return suite


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


def _check_case(suite: str, check: Mapping[str, Any]) -> ET.Element:
    seconds = float(check.get("seconds", 0.0))
    case = ET.Element(
        "testcase", classname=suite, name=clean(check["name"]), time=f"{seconds:.3f}"
    )
    findings = [clean(text) for text in check.get("findings", ())]
    match check["outcome"]:
        case "failed":
            findings = findings or ["failed: the evidence has no finding"]
            failure = ET.SubElement(
                case, "failure", type=findings[0].partition(":")[0], message=findings[0]
            )
            failure.text = clean(
                "\n".join((*findings, str(check.get("error", "")))).strip()
            )
        case "skipped":
            ET.SubElement(case, "skipped", message=clean(check.get("why", "")))
        case "known":
            ET.SubElement(
                case, "skipped", message=clean(f"known failure: {check.get('why', '')}")
            )
        case _ if findings:
            ET.SubElement(case, "system-out").text = "\n".join(findings)
    return case


def _gate_case(
    suite: str, evidence: Evidence, checks: Iterable[Mapping[str, Any]]
) -> ET.Element:
    """Return a case for the errors of a gate that belong to none of its checks."""
    of_checks: set[str] = set()
    for check in checks:
        of_checks |= {*check.get("findings", ())}
    texts = [
        f"{f.code}: {f.message}"
        for f in evidence.findings
        if f.severity is Severity.ERROR
    ]
    own = [clean(text) for text in texts if text not in of_checks] or [
        "gate-error: the evidence has no finding"
    ]
    case = ET.Element("testcase", classname=suite, name=_ITSELF, time="0.000")
    ET.SubElement(
        case, "error", type=own[0].partition(":")[0], message=own[0]
    ).text = "\n".join(own)
    return case


def clean(text: str) -> str:
    """Replace characters that XML forbids."""
    return _NOT_XML.sub("�", text)
