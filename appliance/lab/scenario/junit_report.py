"""Scenario results as JUnit XML, in the form that Jenkins, GitLab, GitHub Actions and Azure read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from appliance.base.clock import iso_utc
from appliance.scenario.scenario_result import ScenarioResult

# What XML 1.0 cannot hold, even escaped.
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_report(results: Sequence[ScenarioResult], now: float) -> bytes:
    """One suite, one case a scenario. A scenario that failed has one `failure` with all its words. now: UTC seconds."""
    failed = sum(result.status == "failed" for result in results)
    skipped = sum(result.status in ("skipped", "known failing") for result in results)
    counts = {
        "name": "vedette scenarios",
        "tests": str(len(results)),
        "failures": str(failed),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{sum(result.wall_s for result in results):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {**counts, "timestamp": iso_utc(now)[:19]})
    for result in results:
        _case(suite, result)
    ElementTree.indent(root)
    page: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return page + b"\n"


def _case(suite: ElementTree.Element, result: ScenarioResult) -> None:
    folder = result.file.parent.as_posix().strip("./").replace("/", ".") or "scenarios"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {
            "classname": _clean(folder),
            "name": _clean(result.name),
            "time": f"{result.wall_s:.3f}",
            "file": _clean(result.file.as_posix()),
        },
    )
    if result.judged_by:
        properties = ElementTree.SubElement(case, "properties")
        ElementTree.SubElement(properties, "property", {"name": "verdicts_by", "value": _clean(result.judged_by)})
    if result.status == "skipped":
        ElementTree.SubElement(case, "skipped", {"message": _clean(result.reason)})
    elif result.status == "known failing":
        # As pytest writes an expected failure: JUnit itself knows none.
        message = _clean(f"known failing: {result.reason}")
        ElementTree.SubElement(case, "skipped", {"type": "pytest.xfail", "message": message}).text = _clean(result.text)
    elif result.status == "failed":
        first, more = result.failures[0].title, len(result.failures) - 1
        message = f"{first} (and {more} more)" if more else first
        failure = ElementTree.SubElement(
            case, "failure", {"message": _clean(message), "type": result.failures[0].kind.replace(" ", "-")}
        )
        failure.text = _clean(result.text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
