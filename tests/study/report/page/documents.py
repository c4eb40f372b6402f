"""A page as a tree of elements, read strictly: what a browser would silently repair is an error here."""

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Element:
    """An element of a parsed page, with what is in it."""

    def __init__(self, tag: str, attributes: dict[str, str | None]):
        self.tag, self.attributes, self.inside = tag, attributes, []

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", self._raw()).strip()

    def _raw(self) -> str:
        return "".join(each if isinstance(each, str) else each._raw() for each in self.inside)

    def all(self, tag: str = "", **wanted: str) -> list["Element"]:
        """Every element below with this tag, and with these words in its attributes (class_ is class)."""
        found: list[Element] = []
        for each in self.inside:
            if isinstance(each, Element):
                words = {name: (each.attributes.get(name.strip("_")) or "").split() for name in wanted}
                if tag in ("", each.tag) and all(word in words[name] for name, word in wanted.items()):
                    found.append(each)
                found += each.all(tag, **wanted)
        return found

    def one(self, tag: str = "", **wanted: str) -> "Element":
        found = self.all(tag, **wanted)
        assert len(found) == 1, f"{len(found)} of {tag} {wanted}"
        return found[0]


class Parser(HTMLParser):
    """Refuses what a browser would silently repair: an element that is not closed, or closed by another's end."""

    def __init__(self):
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].inside.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].inside.append(data)


def parsed(text: str) -> Element:
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [parser.root]
    return parser.root
