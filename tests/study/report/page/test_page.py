"""The page as a document: whole, escaped, readable in both schemes, the same bytes each time."""

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from emabank.study.report.claims import Claim, Finding, above
from emabank.study.report.figures import Figure, Line, Panel
from emabank.study.report.page import page
from emabank.study.report.results import Results, Skipped
from emabank.study.report.tables import Cell, Row, Table
from emabank.study.runs.manifest import Manifest
from tests.study.report.made_results import made_results, made_setting
from tests.study.report.page.documents import Element, parsed

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
