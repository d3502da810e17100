"""Scenario results as JUnit XML, in the form that Jenkins, GitLab, GitHub Actions and Azure read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from appliance.clock import iso_utc
from appliance.lab.scenario.scenario_result import ScenarioResult

# What XML 1.0 cannot hold, even escaped.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(verdicts: Sequence[ScenarioResult], now: float) -> bytes:
    """One suite, one case a scenario. A scenario that failed has one `failure` with all its words. now: UTC seconds."""
    failed = sum(verdict.status == "failed" for verdict in verdicts)
    skipped = sum(verdict.status in ("skipped", "known failing") for verdict in verdicts)
    counts = {
        "name": "vedette scenarios",
        "tests": str(len(verdicts)),
        "failures": str(failed),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{sum(verdict.wall_s for verdict in verdicts):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {**counts, "timestamp": iso_utc(now)[:19]})
    for verdict in verdicts:
        _case(suite, verdict)
    ElementTree.indent(root)
    page: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return page + b"\n"


def _case(suite: ElementTree.Element, verdict: ScenarioResult) -> None:
    folder = verdict.file.parent.as_posix().strip("./").replace("/", ".") or "scenarios"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {
            "classname": _clean(folder),
            "name": _clean(verdict.name),
            "time": f"{verdict.wall_s:.3f}",
            "file": _clean(verdict.file.as_posix()),
        },
    )
    if verdict.judged_by:
        properties = ElementTree.SubElement(case, "properties")
        ElementTree.SubElement(properties, "property", {"name": "verdicts_by", "value": _clean(verdict.judged_by)})
    if verdict.status == "skipped":
        ElementTree.SubElement(case, "skipped", {"message": _clean(verdict.reason)})
    elif verdict.status == "known failing":
        # As pytest writes an expected failure: JUnit itself knows none.
        message = _clean(f"known failing: {verdict.reason}")
        ElementTree.SubElement(case, "skipped", {"type": "pytest.xfail", "message": message}).text = _clean(
            verdict.text
        )
    elif verdict.status == "failed":
        first, more = verdict.failures[0].title, len(verdict.failures) - 1
        message = f"{first} (and {more} more)" if more else first
        failure = ElementTree.SubElement(
            case, "failure", {"message": _clean(message), "type": verdict.failures[0].kind.replace(" ", "-")}
        )
        failure.text = _clean(verdict.text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
