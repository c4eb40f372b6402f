"""The page as a document, parsed strictly: well-formed, escaped, self-contained; and the data of its figures."""

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emabank.study.report.claims import Claim, Finding, above
from emabank.study.report.figures import Figure, Line, Panel
from emabank.study.report.page import figure_json, page
from emabank.study.report.results import Results, Skipped
from emabank.study.report.tables import Cell, Row, Table
from emabank.study.runs.manifest import Manifest
from tests.study.report.example_results import make_results, make_setting

# A strict parser ------------------------------------------------------------------------------------------------------


VOID = {"meta", "link", "br", "img", "input", "hr"}


class Element:
    def __init__(self, tag: str, attributes: dict[str, str | None]):
        self.tag, self.attributes, self.inside = tag, attributes, []

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", self._raw()).strip()

    def _raw(self) -> str:
        return "".join(child if isinstance(child, str) else child._raw() for child in self.inside)

    def all(self, tag: str = "", **wanted: str) -> list["Element"]:
        """The descendants with this tag and with these words in their attributes (`class_` is `class`)."""
        found: list[Element] = []
        for child in self.inside:
            if isinstance(child, Element):
                words = {name: (child.attributes.get(name.strip("_")) or "").split() for name in wanted}
                if tag in ("", child.tag) and all(word in words[name] for name, word in wanted.items()):
                    found.append(child)
                found += child.all(tag, **wanted)
        return found

    def one(self, tag: str = "", **wanted: str) -> "Element":
        found = self.all(tag, **wanted)
        assert len(found) == 1, f"{len(found)} of {tag} {wanted}"
        return found[0]


class Parser(HTMLParser):
    """Rejects what a browser silently repairs: elements without an end tag, or with the end tag of another."""

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


def parse(text: str) -> Element:
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [parser.root]
    return parser.root


# Content --------------------------------------------------------------------------------------------------------------


def finding(mean: float | None = 2.0, low: float | None = 1.5, high: float | None = 2.5, **more) -> Finding:
    fields = {"role": "primary", "key": "accuracy", "statistic": "EMA minus SGD, points", "scale": "demo",
              "setting": "digits, ResNet-8", "by_seed": {0: 1.8, 1: 2.0, 2: 2.2} if mean is not None else {},
              "rule": above(), "verdict": "reproduced", "paper": "+0.92 (Table 1)"}  # fmt: skip
    return Finding(mean=mean, low=low, high=high, **{**fields, **more})


def claim(number: int, *findings: Finding) -> Claim:
    return Claim(number=str(number), title=f"Claim number {number} holds", studies=["dynamics"], findings=findings)


def table(**more) -> Table:
    fields = {
        "name": "generalization/headline",
        "title": "Test accuracy",
        "columns": ["setting", "SGD", "EMA"],
        "rows": [
            Row("digits", [Cell.of([70.0, 71.0, 72.0]), Cell.of([75.0, 75.5, 76.0], paper="78.54 ± 0.28")]),
            Row("letters", [Cell(text="–"), Cell(text="20, 25, 22")]),
        ],
        "study": "generalization",
        "scale": "demo",
        "item": "Table 1",
        "notes": ["Another data set than the paper's."],
    }
    return Table(**{**fields, **more})


def figure(epochs: int = 20, count: int = 2, **more) -> Figure:
    x = np.arange(1, epochs + 1)
    noise = np.random.default_rng(epochs + count).random((count, epochs))
    lines = [Line(label=f"line {number}", x=x, y=60 + 10 * noise[number], std=noise[number], n=3, order=number)
             for number in range(count)]  # fmt: skip
    fields = {"name": "dynamics/a", "title": "Accuracy", "study": "dynamics", "scale": "demo",
              "panels": [Panel(title="digits", lines=lines)]}  # fmt: skip
    return Figure(**{**fields, **more})


NOT_RUN = finding(None, verdict="not run", notes=("emabank run dynamics",))
CLAIMS = [
    claim(1, finding(), finding(-1.0, role="secondary", verdict="not reproduced")),
    claim(2, finding(-1.0, by_seed={0: -1.0}, verdict="not reproduced"), finding(None, verdict="too few runs")),
    claim(3, NOT_RUN),
]


def document(results=None, tables=(), figures=(), claims=(), **more) -> Element:
    return parse(page(results or Results(), tables, figures, claims, **more))


def full_document() -> Element:
    bare = replace(make_setting("cifar100-vgg16"), columns=[])
    return document(make_results(make_setting(), bare), [table()], [figure()], CLAIMS)


def test_every_element_is_closed_and_every_link_has_a_target():
    root = full_document()
    ids = [element.attributes["id"] for element in root.all() if element.attributes.get("id")]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    for element in root.all():
        for name in ("href", "aria-labelledby"):
            target = element.attributes.get(name) or ""
            if name == "href" and not target.startswith("#"):
                continue
            assert not target or target.lstrip("#") in ids, f"{name}={target}"


def test_headings_skip_no_level_and_the_language_is_set():
    root = full_document()
    assert root.one("html").attributes["lang"] == "en"
    levels = [int(element.tag[1]) for element in root.all() if re.fullmatch(r"h[1-6]", element.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(following <= level + 1 for level, following in pairwise(levels))


def test_page_loads_no_other_file():
    root = full_document()
    for element in root.all():
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            target = element.attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (element.tag, target)
    assert not re.search(r"@import|url\((?!#)", root.one("style").text)


def test_policy_allows_only_the_pages_own_style_and_script():
    root = full_document()
    policy = next(meta for meta in root.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.attributes["content"].split(";"))
    assert rules.pop("default-src") == "'none'"
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        inline = [element for element in root.all(tag) if element.attributes.get("type") != "application/json"]
        content = "".join(inline[0].inside)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert len(inline) == 1 and rules.pop(kind) == f"'sha256-{digest}'"
    assert rules == {"img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert not [element for element in root.all() if "style" in element.attributes], "the policy blocks them"


HOSTILE = "</script></style><script>alert(1)</script><b title='\"'>&amp;{{ 7 * 7 }}"


def test_hostile_text_adds_no_element():
    def with_text(text: str) -> Element:
        results = make_results(replace(make_setting(), title=text, averages=(text, *make_setting().averages[1:])))
        study = Manifest(study=text, scale="demo", command=text, state="failed", reason=text)
        results = replace(results, skipped=[Skipped(text, text)], studies=[study])
        rows = [Row(text, [Cell(text=text, paper=text), Cell.of([1.0], paper=text)])]
        tables = [table(title=text, columns=[text] * 3, rows=rows, caption=text, item=text, notes=[text], study=text)]
        line = Line(label=text, x=np.arange(3), y=np.arange(3.0), kind=text)
        panel = Panel(title=text, x_label=text, y_label=text, lines=[line], marks=[(1.0, 1.0, text)])
        figures = [figure(title=text, panels=[panel], caption=text, item=text, notes=[text], study=text)]
        own = finding(statistic=text, setting=text, paper=text, notes=(text,))
        against = replace(own, role="secondary", verdict="not reproduced")
        claims = [replace(claim(1, own, against), title=text, note=text)]
        return document(results, tables, figures, claims, title=text, command=text, facts={text: text})

    tame, hostile = with_text("tame"), with_text(HOSTILE)
    assert [element.tag for element in hostile.all()] == [element.tag for element in tame.all()]
    assert hostile.one("h1").text == hostile.one("title").text == HOSTILE
    assert HOSTILE in hostile.one("noscript").text
    data = json.loads("".join(hostile.one("figure").one("script").inside))
    assert data["legend"][0]["label"] == data["panels"][0]["marks"][0][2] == HOSTILE


FAILED = Manifest(study="dynamics", scale="demo", command="emabank run dynamics", state="failed", reason="it diverged")
STOPPED = Manifest(study="batchnorm", scale="small", command="emabank run batchnorm --scale small", state="running")


def test_skipped_failed_and_unfinished_studies_are_listed_with_their_commands():
    skipped = [Skipped("runs/3f2a", "interrupted; `emabank run dynamics` resumes"), Skipped("a ` b", "one ` alone")]
    root = document(Results(skipped=skipped, studies=[FAILED, STOPPED]))
    first, second = root.one("dl", class_="skipped").all("dd")
    assert first.one("code").text == "emabank run dynamics" and second.text == "one ` alone"
    assert "it diverged" in root.one("section", id="study-dynamics").text
    assert "interrupted" in root.one("section", id="study-batchnorm").text
    assert [option.text for option in root.one("select").all("option")] == ["all scales", "small", "demo"]
    assert root.one("pre").text == "emabank run dynamics emabank run batchnorm --scale small"


def test_studies_stand_in_the_reports_order_and_those_not_run_are_folded_last():
    tables = [table(study="my own"), table(study="transfer", name="t"), table(study="generalization", name="g")]
    root = document(Results(studies=[FAILED]), tables=tables, figures=[figure(study="dynamics")])
    assert root.one("h1").text == "Weight averages: Training dynamics, demo scale"
    wanted = ["study-dynamics", "study-generalization", "study-transfer", "study-my-own"]
    sections = root.all(class_="study")
    assert [section.attributes["id"] for section in sections] == wanted
    assert [section.tag for section in sections] == ["section", "details", "details", "details"]
    links = [link.attributes["href"] for link in root.one("ul", class_="links").all("a")]
    assert links == [*(f"#{name}" for name in wanted), "#obtained"]
    assert {section.tag for section in document(tables=tables).all(class_="study")} == {"section"}


def test_page_without_results_has_an_overview():
    root = document()
    assert not root.all("table") and not root.all("figure")
    assert [section.attributes["id"] for section in root.all("section")] == ["overview", "obtained"]


# Figures as JSON ------------------------------------------------------------------------------------------------------


EPOCHS = np.arange(1, 201)


def line(label="live weights", y=None, **more) -> Line:
    return Line(**{"label": label, "x": EPOCHS, "y": 70 + 10 * np.sin(EPOCHS / 9) if y is None else y, **more})


def to_json(*lines: Line) -> dict:
    panel = Panel(title="a", lines=lines)
    return json.loads(figure_json(Figure(name="study/figure", title="A figure", panels=[panel])))


def x_of(figure: dict) -> list[float]:
    """The x of the first line's points, computed as the script does."""
    x = figure["xs"][figure["panels"][0]["lines"][0]["x"]]
    return x if isinstance(x, list) else [x["from"] + index * x["step"] for index in range(x["count"])]


def test_missing_values_stay_missing():
    stored = to_json(line(y=np.where(EPOCHS % 5 == 0, 70.0, np.nan)))["panels"][0]["lines"][0]
    assert [value is None for value in stored["y"]] == (EPOCHS % 5 != 0).tolist() and "std" not in stored


@pytest.mark.parametrize("x", [[1, 2, 4, 8], [0.1, 0.25, 0.3], [5], [3, 4], [0.05, 0.1, 0.15, 0.2]])
def test_x_may_be_regular_or_irregular(x):
    assert x_of(to_json(line(x=np.array(x), y=np.ones(len(x))))) == pytest.approx(x)


def test_no_two_lines_look_the_same():
    kinds = ["live", "live", "best", "swa", "something", "else", *["average"] * 6]
    lines = [line(f"line {number}", kind=kind, order=number) for number, kind in enumerate(kinds)]
    looks = {(entry["colour"], entry["dash"]) for entry in to_json(*lines)["legend"]}
    assert len(looks) == len(lines)


@given(st.text(max_size=40))
def test_no_text_escapes_from_the_json(text):
    encoded = figure_json(Figure(name="a", title="a", panels=[Panel(title=text, y_label=text, lines=[line(text)])]))
    assert not set(encoded) & set("<>&\u2028\u2029")
    figure = json.loads(encoded)
    assert figure["panels"][0]["title"] == figure["legend"][0]["label"] == text
