"""The page as a document, read strictly: whole, escaped, the same bytes each time; and what its script draws."""

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
from tests.study.report.made_results import made_results, made_setting

# What a browser would silently repair is an error here ----------------------------------------------------------------


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


# What is shown --------------------------------------------------------------------------------------------------------


def finding(mean: float | None = 2.0, low: float | None = 1.5, high: float | None = 2.5, **more) -> Finding:
    fields = {"role": "primary", "key": "accuracy", "statistic": "EMA minus SGD, points", "scale": "demo",
              "setting": "digits, ResNet-8", "by_seed": {0: 1.8, 1: 2.0, 2: 2.2} if mean is not None else {},
              "rule": above(), "verdict": "reproduced", "paper": "+0.92 (Table 1)"}  # fmt: skip
    return Finding(mean=mean, low=low, high=high, **{**fields, **more})


def claim(number: int, *findings: Finding) -> Claim:
    return Claim(number=str(number), title=f"Claim number {number} holds", studies=["dynamics"], findings=findings)


def table(**more) -> Table:
    given = {
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
    return Table(**{**given, **more})


def figure(epochs: int = 20, count: int = 2, **more) -> Figure:
    x = np.arange(1, epochs + 1)
    noise = np.random.default_rng(epochs + count).random((count, epochs))
    lines = [Line(label=f"line {number}", x=x, y=60 + 10 * noise[number], std=noise[number], n=3, order=number)
             for number in range(count)]  # fmt: skip
    given = {"name": "dynamics/a", "title": "Accuracy", "study": "dynamics", "scale": "demo",
             "panels": [Panel(title="digits", lines=lines)]}  # fmt: skip
    return Figure(**{**given, **more})


NOT_RUN = finding(None, verdict="not run", notes=("emabank run dynamics",))
CLAIMS = [
    claim(1, finding(), finding(-1.0, role="secondary", verdict="not reproduced")),
    claim(2, finding(-1.0, by_seed={0: -1.0}, verdict="not reproduced")),
    claim(3, NOT_RUN),
]


def document(results=None, tables=(), figures=(), claims=(), **more) -> Element:
    return parsed(page(results or Results(), tables, figures, claims, **more))


def a_full_page(**more) -> str:
    return page(made_results(made_setting()), [table()], [figure()], CLAIMS, **more)


def test_every_element_is_closed_and_every_link_leads_somewhere():
    root = parsed(a_full_page())
    ids = [each.attributes["id"] for each in root.all() if each.attributes.get("id")]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    for each in root.all():
        for name in ("href", "aria-labelledby"):
            target = each.attributes.get(name) or ""
            if name == "href" and not target.startswith("#"):
                continue
            assert not target or target.lstrip("#") in ids, f"{name}={target}"


def test_control_an_element_that_is_not_closed_is_seen():
    with pytest.raises(AssertionError, match="</p> closes <b>"):
        parsed("<p><b>bold</p>")


def test_headings_have_no_gaps_and_the_language_is_said():
    root = parsed(a_full_page())
    assert root.one("html").attributes["lang"] == "en"
    levels = [int(each.tag[1]) for each in root.all() if re.fullmatch(r"h[1-6]", each.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(next_one <= level + 1 for level, next_one in pairwise(levels))


def test_nothing_is_loaded_from_anywhere():
    root = parsed(a_full_page())
    for each in root.all():
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            target = each.attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (each.tag, target)
    assert not re.search(r"@import|url\((?!#)", root.one("style").text)


def test_the_policy_allows_nothing_but_this_style_and_this_script():
    root = parsed(a_full_page())
    policy = next(each for each in root.all("meta") if each.attributes.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.attributes["content"].split(";"))
    assert rules.pop("default-src") == "'none'"
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        inline = [each for each in root.all(tag) if each.attributes.get("type") != "application/json"]
        content = "".join(inline[0].inside)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert len(inline) == 1 and rules.pop(kind) == f"'sha256-{digest}'"
    assert rules == {"img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert not [each for each in root.all() if "style" in each.attributes]  # the policy would not let them count


HOSTILE = "</script></style><script>alert(1)</script><b title='\"'>&amp;{{ 7 * 7 }}"


def test_no_text_becomes_an_element():
    def with_text(text: str) -> Element:
        results = made_results(replace(made_setting(), title=text, averages=(text, *made_setting().averages[1:])))
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
    assert [each.tag for each in hostile.all()] == [each.tag for each in tame.all()]
    shown = re.sub(r"\s+", " ", HOSTILE)
    assert hostile.one("h1").text == shown
    assert hostile.one("title").text == shown
    assert shown in hostile.one("noscript").text
    data = json.loads("".join(hostile.one("figure").one("script").inside))
    assert data["legend"][0]["label"] == data["panels"][0]["marks"][0][2] == HOSTILE


def test_claims_that_were_run_are_listed_with_their_findings_and_the_others_are_one_folded_line():
    root = document(claims=CLAIMS)
    listed = [item.one("summary").text for item in root.one("ol", class_="claims").all("li")]
    assert listed == [
        "1 reproduced Claim number 1 holds 3 of 3 seeds, 1 exception",
        "2 not reproduced Claim number 2 holds 0 of 1 seeds",
    ]
    left = root.one("details", class_="not-run")
    assert left.one("summary").text == "Claims not run: 3" and left.one("code").text == "emabank run dynamics"
    for each in root.all("span", class_="verdict"):
        symbol = each.one("use").attributes["href"]
        assert root.one("symbol", id=symbol.lstrip("#")) and symbol == "#icon-" + each.text.replace(" ", "-")


def test_an_interval_is_printed_and_drawn_to_one_scale():
    findings = [
        finding(),
        finding(-1.0, -2.0, 0.0, by_seed={0: -1.5, 1: -0.5}, verdict="not reproduced"),
        finding(None, None, None),
    ]
    root = document(claims=[claim(1, *findings)]).one("details", class_="claim")
    drawn = root.all("svg", class_="whisker")
    assert len(drawn) == 2  # what was not run has no interval
    assert [each.text for each in root.all("span", class_="amount")] == ["2.00 [1.50, 2.50]", "−1.00 [−2.00, 0.00]"]

    def places(found: Element) -> dict[float, float]:
        low, high = (float(found.all("line", class_="interval")[0].attributes[end].rstrip("%")) for end in ("x1", "x2"))
        mean = float(found.one("circle", class_="mean").attributes["cx"].rstrip("%"))
        bound = float(found.one("line", class_="bound").attributes["x1"].rstrip("%"))
        return {"low": low, "mean": mean, "high": high, "bound": bound}

    first, second = map(places, drawn)
    values = np.array([1.5, 2.0, 2.5, 0.0, -2.0, -1.0, 0.0, 0.0])
    where = np.array([*first.values(), *second.values()])
    slope, start = np.polyfit(values, where, 1)
    assert slope > 0 and np.allclose(start + slope * values, where, atol=0.02)
    assert where.min() >= 0 and where.max() <= 100


def test_the_headline_is_the_paired_gain_of_the_slowest_average_over_the_live_weights_chosen_alike():
    setting = made_setting()
    values = {column.title: np.array(column.values["accuracy"]) for column in setting.columns
              if column.trained_on == "100%"}  # fmt: skip
    best, last, average = (values[title] for title in ("SGD (best)", "SGD", "slowest (acc.)"))
    gain, over_last = 100 * (average - best), 100 * (average - last)
    theirs = finding(setting=setting.title)
    root = document(made_results(setting), claims=[claim(16, theirs)]).one("table", class_="headline")
    row = root.one("tbody").one("tr")
    assert row.one("td", class_="gain").text == f"+{gain.mean():.2f} ± {gain.std(ddof=1):.2f}"
    assert row.one("td", class_="over-last").text == f"+{over_last.mean():.2f} ± {over_last.std(ddof=1):.2f}"
    assert row.one("td", class_="count").text == "3"
    assert row.one("span", class_="theirs").text == "paper +0.92 (Table 1)"
    columns = [column for column in setting.columns if column.title != "slowest (acc.)"]
    assert not document(made_results(replace(setting, columns=columns))).all("table", class_="headline")


FAILED = Manifest(study="dynamics", scale="demo", command="emabank run dynamics", state="failed", reason="it diverged")
STOPPED = Manifest(study="batchnorm", scale="small", command="emabank run batchnorm --scale small", state="running")


def test_what_was_skipped_failed_or_is_unfinished_is_said_with_commands_as_code():
    skipped = [Skipped("runs/3f2a", "interrupted; `emabank run dynamics` resumes"), Skipped("a ` b", "one ` alone")]
    root = document(Results(skipped=skipped, studies=[FAILED, STOPPED]))
    first, second = root.one("dl", class_="skipped").all("dd")
    assert first.one("code").text == "emabank run dynamics" and second.text == "one ` alone"
    assert "it diverged" in root.one("section", id="study-dynamics").text
    assert "interrupted" in root.one("section", id="study-batchnorm").text
    assert [each.text for each in root.one("select").all("option")] == ["all scales", "small", "demo"]
    assert root.one("pre").text == "emabank run dynamics emabank run batchnorm --scale small"


def test_the_page_begins_with_what_was_run_and_its_answer():
    done = Manifest(study="label-noise", scale="demo", command="emabank run label-noise", state="done")
    settings = made_setting(), made_setting("cifar10-resnet18")
    header = document(replace(made_results(*settings), studies=[done])).one("header", id="top")
    assert header.one("h1").text == "Weight averages: Label noise, demo scale"
    gains = [
        100
        * np.mean(
            np.subtract(
                *(
                    next(
                        column.values["accuracy"]
                        for column in setting.columns
                        if (column.title, column.trained_on) == (title, "100%")
                    )
                    for title in ("slowest (acc.)", "SGD (best)")
                )
            )
        )
        for setting in settings
    ]
    assert "in 2 of 2 settings" in header.one("p").text and f"+{gains[0]:.2f}" in header.one("p").text


def test_studies_that_were_run_stand_in_the_reports_order_and_the_rest_is_folded_at_the_end():
    tables = [table(study="my own"), table(study="transfer", name="t"), table(study="generalization", name="g")]
    root = document(Results(studies=[FAILED]), tables=tables, figures=[figure(study="dynamics")])
    wanted = ["study-dynamics", "study-generalization", "study-transfer", "study-my-own"]
    sections = root.all(class_="study")
    assert [each.attributes["id"] for each in sections] == wanted
    assert [each.tag for each in sections] == ["section", "details", "details", "details"]
    links = [each.attributes["href"] for each in root.one("ul", class_="links").all("a")]
    assert links == [*(f"#{name}" for name in wanted), "#obtained"]
    assert {each.tag for each in document(tables=tables).all(class_="study")} == {"section"}


def test_neighbours_share_a_title_and_a_caption():
    figures = [figure(name=name, caption=caption) for name, caption in (("a", "one"), ("b", "one"), ("c", "two"))]
    drawn = document(figures=figures).all("figure")
    assert [each.one("h3").attributes.get("class") for each in drawn] == [None, "spoken", "spoken"]
    assert [[caption.text for caption in each.one("figcaption").all("p")] for each in drawn] == [[], ["one"], ["two"]]


def test_an_empty_folder_makes_a_page_too():
    root = document()
    assert not root.all("table") and not root.all("figure")
    assert [each.attributes["id"] for each in root.all("section")] == ["overview", "obtained"]


# Figures as JSON ------------------------------------------------------------------------------------------------------


EPOCHS = np.arange(1, 201)


def drawn(label="live weights", y=None, **more) -> Line:
    return Line(**{"label": label, "x": EPOCHS, "y": 70 + 10 * np.sin(EPOCHS / 9) if y is None else y, **more})


def read(*panels: Panel, **more) -> dict:
    return json.loads(figure_json(Figure(name="study/figure", title="A figure", panels=panels, **more)))


def x_of(found: dict, which: int) -> list[float]:
    """The places of a line's points, as the script makes them."""
    x = found["xs"][which]
    return x if isinstance(x, list) else [x["from"] + place * x["step"] for place in range(x["count"])]


def test_every_value_is_there_to_a_digit_more_than_is_shown():
    y, std = 100 * np.random.default_rng(0).random(200), np.random.default_rng(1).random(200)
    found = read(Panel(title="a", lines=[drawn(y=y, std=std, n=3)]))
    panel = found["panels"][0]
    made = panel["lines"][0]
    half = 0.5 * 10.0 ** -(panel["digits"] + 1)
    assert panel["digits"] == 2  # as the tables print percentages
    assert np.abs(np.array(made["y"]) - y).max() <= half + 1e-12
    assert np.abs(np.array(made["std"]) - std).max() <= half + 1e-12
    assert x_of(found, made["x"]) == EPOCHS.tolist()
    assert made["n"] == 3


def test_a_value_that_is_missing_stays_missing():
    y = np.where(EPOCHS % 5 == 0, 70.0, np.nan)
    made = read(Panel(title="a", lines=[drawn(y=y, std=None)]))["panels"][0]["lines"][0]
    assert [value is None for value in made["y"]] == np.isnan(y).tolist()
    assert "std" not in made


@pytest.mark.parametrize("x", [[1, 2, 4, 8], [0.1, 0.25, 0.3], [5], [3, 4], [0.05, 0.1, 0.15, 0.2]])
def test_points_may_lie_anywhere(x):
    made = Line(label="a", x=np.array(x), y=np.ones(len(x)))
    found = read(Panel(title="a", lines=[made]))
    assert x_of(found, found["panels"][0]["lines"][0]["x"]) == pytest.approx(x)


def test_the_longer_the_memory_the_longer_the_dash():
    lines = [drawn("live weights", kind="live")] + [drawn(f"ema {order}", order=order) for order in range(5)]
    entries = read(Panel(title="a", lines=lines))["legend"]
    lengths = [float(entry["dash"].split()[0]) if entry["dash"] else np.inf for entry in entries[1:]]
    assert all(shorter < longer for shorter, longer in pairwise(lengths))
    assert [entry["colour"] for entry in entries] == ["live", "a0", "a1", "a2", "a3", "a4"]


def test_dashes_that_mean_something_keep_their_meaning():
    lines = [drawn(f"{words} {order}", order=order, dashed=words == "averaged")
             for words in ("averaged", "recomputed") for order in (0, 4)]  # fmt: skip
    entries = read(Panel(title="a", lines=lines))["legend"]
    assert [bool(entry["dash"]) for entry in entries] == [True, True, False, False]
    assert entries[0]["colour"] == entries[2]["colour"] != entries[1]["colour"]


def test_no_two_lines_look_the_same():
    kinds = ["live", "live", "best", "swa", "something", "else", *["average"] * 6]
    lines = [drawn(f"line {number}", kind=kind, order=number) for number, kind in enumerate(kinds)]
    entries = read(Panel(title="a", lines=lines))["legend"]
    looks = {(entry["colour"], entry["dash"]) for entry in entries}
    assert len(looks) == len(lines)


@given(st.text(max_size=40))
def test_no_text_breaks_out_of_its_element(text):
    made = figure_json(Figure(name="a", title="a", panels=[Panel(title=text, y_label=text, lines=[drawn(text)])]))
    assert not set(made) & set("<>&\u2028\u2029")
    found = json.loads(made)
    assert found["panels"][0]["title"] == found["legend"][0]["label"] == text


@pytest.mark.parametrize(
    ("values", "wanted"), [([97.1, 98.2], 2), ([0.4, 0.8], 4), ([1.02, 1.5, 40.0], 3), ([0.0], 2), ([5e5], 0)]
)
def test_digits_follow_the_size_of_the_values(values, wanted):
    y = np.array([*values, float("nan")])
    made = Line(label="a", x=np.arange(len(y)), y=y)
    assert read(Panel(title="a", lines=[made]))["panels"][0]["digits"] == wanted
