"""JUnit XML without what Jenkins' schema (junit-10.xsd) does not know: for readers that refuse anything else.

The schema has no properties and no place of a test case. What they say is in the case's `system-out` as well.
"""

from xml.etree import ElementTree as ET

_SUITE = {"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package",
          "file", "log", "url"}  # fmt: skip
_CASE = {"name", "time", "classname", "group"}
_ENDS = {"skipped", "error", "failure"}
_END = {"type", "message"}
_OUTPUT = {"system-out", "system-err"}


def strict(report: ET.Element) -> ET.Element:
    """A report with the elements and attributes of the schema alone.

    Args:
        report: a `testsuites` element; it stays as it is.
    """
    root = ET.Element("testsuites", _kept(report, {"name", "time", "tests", "failures", "errors"}))
    root.extend(_suite(suite) for suite in report.iter("testsuite"))
    return root


def _suite(suite: ET.Element) -> ET.Element:
    made = ET.Element("testsuite", {"tests": "0", "failures": "0", "errors": "0", **_kept(suite, _SUITE)})
    told = suite.find("properties")
    if told is not None:
        properties = ET.SubElement(made, "properties")
        for each in told.iter("property"):
            ET.SubElement(properties, "property", name=each.get("name", ""), value=each.get("value", ""))
    made.extend(_case(case) for case in suite.iter("testcase"))
    return made


def _case(case: ET.Element) -> ET.Element:
    made = ET.Element("testcase", _kept(case, _CASE))
    for child in case:
        if child.tag in _ENDS | _OUTPUT:
            ET.SubElement(made, child.tag, _kept(child, _END) if child.tag in _ENDS else {}).text = child.text
    return made


def _kept(element: ET.Element, known: set[str]) -> dict[str, str]:
    return {name: value for name, value in element.attrib.items() if name in known}
