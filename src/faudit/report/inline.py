"""Matplotlib's SVG made fit for a page: labelled, small, in the page's own colours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from faudit.report.escape import plain
from faudit.report.style import PALETTE

SCALE = 1.45
"""Pixels per point: how large a figure is where there is room for it."""

LONG_PATH = 400
SPOKEN = 1500
"""Characters of a picture's description."""
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"


@dataclass
class Styles:
    """The styles that the pictures of one page share, as classes.

    >>> styles = Styles()
    >>> styles.name("fill: none"), styles.name("fill: none"), styles.sheet
    ('f0', 'f0', '.f0{fill:none}')
    """

    names: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def name(self, style: str) -> str:
        """The class for a style."""
        short = re.sub(r"\s*([;:])\s*", r"\1", style.strip().rstrip(";"))
        return self.names.setdefault(short, f"f{len(self.names)}")

    def id(self, long: str) -> str:
        """A short id for the page, in place of one that is unique everywhere."""
        return self.ids.setdefault(long, f"i{len(self.ids)}")

    @property
    def sheet(self) -> str:
        """The style sheet of all classes so far."""
        return "".join(f".{name}{{{style}}}" for style, name in self.names.items())


def for_page(raw: bytes, words: str, styles: Styles | None = None) -> str:
    """An ``<svg>`` element that reads as ``words`` to those who cannot see it."""
    root = ElementTree.fromstring(raw)
    for unwanted in ("metadata", "defs"):  # the first defs hold a style for the whole page
        for child in root.findall(f"{_SVG}{unwanted}")[:1]:
            root.remove(child)
    width = float(root.attrib["viewBox"].split()[2])
    _drop_unused_names(root)
    for element in root.iter():
        _slim(element)
        _restyle(element, styles)
    _unwrap(root)
    _hoist(root)
    _gather(root)
    if styles is not None:
        _rename(root, styles)
    root.attrib.pop("height", None)
    root.attrib.pop("version", None)
    root.attrib.update({"width": f"{SCALE * width:.0f}", "role": "img"})
    root.set("aria-label", plain(spoken(words)))
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def spoken(words: str) -> str:
    """As much as somebody would listen to; a table says the rest.

    >>> spoken("DFA 0.3; " * 3), spoken("DFA 0.3; " * 1000)[-31:]
    ('DFA 0.3; DFA 0.3; DFA 0.3; ', '.3; and 835 more in the tables.')
    """
    if len(words) <= SPOKEN:
        return words
    kept = words[:SPOKEN].rpartition("; ")[0] or words[:SPOKEN]
    return f"{kept}; and {words.count('; ') - kept.count('; ')} more in the tables."


def _drop_unused_names(root: Element) -> None:
    """Ids are one namespace for the whole page; matplotlib's ``axes_1`` would come twice."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r"url\(#([^)]+)\)", text))
    used |= {element.get(_XLINK, "#")[1:] for element in root.iter()}
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)


def _slim(element: Element) -> None:
    """Shorter numbers, plain names, and none of the white space between elements."""
    element.tag = element.tag.removeprefix(_SVG)
    element.tail = None
    if element.tag != "text" and not (element.text or "").strip():
        element.text = None
    if _XLINK in element.attrib:
        element.set("href", element.attrib.pop(_XLINK))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for name in ("d", "x", "y", "transform"):
        if name in element.attrib:
            element.set(name, _rounded(element.attrib[name]))


def _rounded(numbers: str) -> str:
    # A tenth of a point is invisible along a curve; a marker is too small for that.
    digits = 1 if len(numbers) > LONG_PATH else 2
    short = re.sub(r"-?\d+\.\d+", lambda found: _shortest(float(found[0]), digits), numbers)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(short.split()))


def _shortest(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def _restyle(element: Element, styles: Styles | None) -> None:
    """The page's colours and font in place of matplotlib's, which only attributes can hold."""
    if "style" not in element.attrib:
        return
    style = element.attrib.pop("style")
    for name, (light, _) in PALETTE.items():
        style = style.replace(light, f"var(--{name})")
    style = re.sub(r"font-family: [^;]*;?\s*", "", style)
    style = re.sub(r"'DejaVu Sans'[^;]*", "var(--font)", style)
    if styles is None:
        element.set("style", style)
    else:
        element.set("class", styles.name(style))


def _unwrap(parent: Element) -> None:
    """Take groups that say nothing out of the way, and lines from a point to nowhere."""
    children = []
    for child in parent:
        if child.tag == "path" and re.fullmatch(r"M[-\d. ]*", child.get("d", "")):
            continue
        _unwrap(child)
        children += list(child) if child.tag == "g" and not child.attrib else [child]
    parent[:] = children


def _hoist(root: Element) -> None:
    """The one class that all marks of a series share stands at their group."""
    for group in root.iter("g"):
        classes = {mark.get("class") for mark in group} if group.get("class") is None else set()
        if (
            len(group) > 1
            and {mark.tag for mark in group} == {"use"}
            and len(classes - {None}) == 1 == len(classes)
        ):
            group.set("class", group[0].attrib["class"])
            for mark in group:
                del mark.attrib["class"]


def _gather(root: Element) -> None:
    """What is defined first, under one head; neighbours with the same clip in one group."""
    definitions, children = Element("defs"), list[Element]()
    for child in root:
        clip = child.attrib.pop("clip-path", None)
        if child.tag == "defs":
            definitions.extend(child)
        elif clip is None:
            children.append(child)
        else:
            if not children or children[-1].attrib != {"clip-path": clip}:
                children.append(Element("g", {"clip-path": clip}))
            children[-1].extend([child] if child.attrib or child.tag != "g" else list(child))
    root[:] = [definitions, *children] if len(definitions) else children


def _rename(root: Element, styles: Styles) -> None:
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", styles.id(element.attrib["id"]))
        if "href" in element.attrib:
            element.set("href", f"#{styles.id(element.attrib['href'][1:])}")
        if "clip-path" in element.attrib:
            found = element.attrib["clip-path"].removeprefix("url(#").removesuffix(")")
            element.set("clip-path", f"url(#{styles.id(found)})")
