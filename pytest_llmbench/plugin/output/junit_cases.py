"""The test cases of ours in pytest's XML, completed: their evidence as text, file and line, and names that last."""

from collections import Counter
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from pytest_llmbench.plugin.pytest_private import bin_xml_escape
from pytest_llmbench.reporting.ci import case_properties, evidence_lines

_OUTPUT = "system-out"


def complete(cases: Sequence[ET.Element], records: str, *, places: bool) -> None:
    """Complete every case that has a verdict; a case that is complete stays as it is.

    `records` is the path of the session's folder for a reader of the file. With `places` a case gets its file and line
    as attributes, which Jenkins' schema lacks.
    """
    rows = [{item.get("name", ""): item.get("value", "") for item in case.iter("property")} for case in cases]
    ours = [(case, row) for case, row in zip(cases, rows, strict=True) if "verdict" in row]
    taken = Counter((case.get("classname"), case.get("name")) for case in cases)
    names = Counter(
        (case.get("classname"), lasting_name(case.get("name", ""), properties)) for case, properties in ours
    )
    for case, properties in ours:
        name = lasting_name(case.get("name", ""), properties)
        key = (case.get("classname"), name)
        if names[key] == 1 and not taken[key]:
            case.set("name", name)
        if places:
            for attribute in ("file", "line"):
                if attribute in properties:
                    case.set(attribute, properties[attribute])
        shown, element = case_properties(properties), case.find("properties")
        if element is not None:
            element[:] = [ET.Element("property", name=name, value=value) for name, value in shown.items()]
        output = case.find(_OUTPUT)
        if output is not None and (output.text or "").startswith(f"verdict: {properties['verdict']}\n"):
            continue
        text = bin_xml_escape("\n".join(evidence_lines(properties, records)) + "\n")
        # Readers take the first, or all: what a test printed comes after its evidence.
        if output is None:
            ET.SubElement(case, _OUTPUT).text = text
        else:
            output.text = f"{text}\n{output.text or ''}"


def lasting_name(name: str, properties: Mapping[str, str]) -> str:
    """The name of a case that stays the same in other sessions: it has the node instead of the slot.

    A slot, or a group of one node, is another node in the next session, and a history by name would mix them.
    """
    host = properties.get("hosts", "")
    if properties.get("check") and properties.get("slot") and host:
        return rename_part(name, f"{properties['check']}-slot{properties['slot']}", f"{properties['check']}-{host}")
    return name


def rename_part(name: str, part: str, new: str) -> str:
    """A name in whose brackets one part is another: a part ends at a hyphen or the bracket."""
    before, bracket, inside = name.partition("[")
    if not bracket or not inside.endswith("]"):
        return name
    words = f"-{inside[:-1]}-"
    return f"{before}[{words.replace(f'-{part}-', f'-{new}-', 1)[1:-1]}]" if f"-{part}-" in words else name
