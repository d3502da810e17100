"""XML that a stranger sent, read into a small tree: no document type, no entities, bounded depth and elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

DEPTH_MAX = 40  # levels; ONVIF's deepest answer has some 15
ELEMENTS_MAX = 20_000  # of ANSWER_BYTES_MAX at 50 bytes an element
TEXT_MAX = 4096  # of one element; what is longer is no name, number or address


class XmlRefused(ValueError):
    """This is no XML that we read; the message says why, without any of it."""


@dataclass(slots=True)
class XmlElement:
    """One element. Names are without namespace: cameras mix them up, and no answer has two that differ in it alone."""

    name: str
    namespace: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[XmlElement] = field(default_factory=list)
    text: str = ""

    def all(self, name: str) -> Iterator[XmlElement]:
        """Yield the children of this name."""
        return (child for child in self.children if child.name == name)

    def at(self, *path: str) -> XmlElement | None:
        """Return the first element at the path."""
        found: XmlElement | None = self
        for name in path:
            found = next(found.all(name), None) if found else None
        return found

    def text_at(self, *path: str) -> str:
        """Return the text at the path without spaces around it, printable; '' if there is none."""
        found = self.at(*path)
        text = found.text.strip() if found else ""
        return "".join(each if each.isprintable() else " " for each in text)

    def number_at(self, *path: str) -> float | None:
        """Return the number at the path; None if there is none that is finite and not below 0."""
        return number(self.text_at(*path))

    def every(self, name: str) -> Iterator[XmlElement]:
        """Yield this element and all below it, if of this name, in the order of the document."""
        if self.name == name:
            yield self
        for child in self.children:
            yield from child.every(name)


def number(text: str) -> float | None:
    """Return a finite number that is 0 or more and below 1e9, written in at most 12 characters; else None."""
    try:
        found = float(text) if 0 < len(text) <= 12 else -1.0
    except ValueError:
        return None
    return found if 0 <= found < 1e9 else None


class _TreeBuilder:
    def __init__(self, parser: expat.XMLParserType) -> None:
        self.root: XmlElement | None = None
        self._open: list[XmlElement] = []
        self._count = 0
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.StartDoctypeDeclHandler = self._refuse_type
        parser.EntityDeclHandler = self._refuse_type

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > ELEMENTS_MAX or len(self._open) >= DEPTH_MAX:
            raise XmlRefused("it has too many elements, or too many within each other")
        namespace, _, local = name.rpartition(" ")
        plain = {key.rpartition(" ")[2]: value[:TEXT_MAX] for key, value in attributes.items()}
        element = XmlElement(local, namespace, plain)
        if self._open:
            self._open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self._open.append(element)

    def _end(self, _name: str) -> None:
        self._open.pop()

    def _data(self, data: str) -> None:
        element = self._open[-1]
        if len(element.text) < TEXT_MAX:
            element.text += data[: TEXT_MAX - len(element.text)]

    def _refuse_type(self, *_: object) -> None:
        raise XmlRefused("it declares a document type or entities")


def parse_xml(data: bytes) -> XmlElement:
    """Return the root of the document. The caller bounds the bytes. Raise XmlRefused."""
    parser = expat.ParserCreate(namespace_separator=" ")
    builder = _TreeBuilder(parser)
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError) as error:  # ValueError: an encoding that is none
        raise XmlRefused(str(error) if isinstance(error, XmlRefused) else "it is not well-formed") from None
    except LookupError:
        raise XmlRefused("it names an encoding that there is not") from None
    if builder.root is None:
        raise XmlRefused("it is empty")
    return builder.root
