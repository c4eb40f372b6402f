"""The claims on a terminal of 80 columns, as Markdown and as CSV say the same, and nothing is cut."""

import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console

from emabank.study.report.claims.all import claims
from emabank.study.report.claims.show import FOOTER, SYMBOLS, claims_csv, claims_markdown, claims_text, summary
from emabank.study.report.evidence import Evidence
from emabank.study.report.verdict import Claim, Part
from tests.study.report.claims.shapes import evidence, setting


@pytest.fixture(scope="module")
def found():
    return claims(evidence(setting(), setting("cifar100n-resnet34"), setting(scale="small")))


def printed(renderable, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def one(verdict: str, **more) -> Claim:
    given = {"statistic": "gain, points", "setting": "digits", "scale": "demo", "values": (1.0, 2.0, 3.0), "mean": 2.0,
             "low": -0.484, "high": 4.484, "n": 3, "rule": "above 0", "verdict": verdict}  # fmt: skip
    return Claim(number=7, title="It gains [a lot] | and more", studies=["dynamics"], verdict=verdict,  # type: ignore[arg-type]
                 parts=(Part(**{**given, **more}),), note="an honest word")  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_too_long_and_nothing_is_cut(found, width):
    lines = printed(claims_text(found), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines).replace("… too few runs", "")


def test_a_claim_shows_number_title_verdict_and_its_part(found):
    lines = printed(claims_text([one("inconclusive")])).splitlines()
    assert lines[0].split(maxsplit=3) == ["?", "inconclusive", "7", "It gains [a lot] | and more (0 of 1 hold)"]
    assert lines[1].strip() == "gain, points: above 0"
    assert lines[2].split() == ["?", "digits", "(demo)", "2.00", "[−0.48,", "4.48]", "n=3"]
    assert lines[3].strip() == "Note: an honest word."


@pytest.mark.parametrize(("verdict", "symbol"), SYMBOLS.items())
def test_every_verdict_has_a_symbol_and_a_word(verdict, symbol):
    assert f"{symbol} {verdict}" in printed(claims_text([one(verdict)]))
    assert f"| {symbol} {verdict} |" in claims_markdown([one(verdict)])
    assert f"{symbol} {verdict}" in FOOTER
    assert len(set(SYMBOLS.values())) == 5


def test_the_papers_value_and_a_note_stand_below_their_part():
    text = printed(claims_text([one("reproduced", paper="+0.92 (Table 1)", note="seed 1 is missing")]))
    lines = [line.strip() for line in text.splitlines()]
    assert lines[3:5] == ["paper: +0.92 (Table 1)", "seed 1 is missing"]


def test_a_note_of_many_parts_is_said_once():
    part = one("reproduced", note="pairs are not independent").parts[0]
    claim = replace(one("reproduced"), parts=(part, replace(part, setting="other")))
    assert printed(claims_text([claim])).count("pairs are not independent") == 1


def test_small_numbers_keep_their_digits():
    text = printed(claims_text([one("reproduced", mean=0.0625, low=0.06, high=0.065)]))
    assert "0.0625 [0.0600, 0.0650]" in text
    assert "0.00 [0.00, 0.00]" in printed(claims_text([one("reproduced", mean=0.0, low=0.0, high=0.0)]))


def test_what_was_not_run_says_what_to_run():
    text = printed(claims_text(claims(Evidence())))
    assert "emabank run bootstrap" in text and "n=0" not in text
    assert "19 not run" in text


def test_one_value_has_no_interval_and_none_is_a_dash():
    lines = printed(claims_text([one("too few runs", low=None, high=None, n=1)])).splitlines()
    assert lines[2].split() == ["…", "digits", "(demo)", "2.00", "n=1"]
    lines = printed(claims_text([one("too few runs", mean=None, low=None, high=None, n=1)])).splitlines()
    assert lines[2].split() == ["…", "digits", "(demo)", "–", "n=1"]


def test_without_parts_only_the_claims_are_listed(found):
    text = printed(claims_text(found, parts=False), width=220)
    assert len(text.splitlines()) == 19 + 2
    for claim in found:
        ran = [part for part in claim.parts if part.verdict != "not run"]
        held = [part for part in ran if part.verdict == "reproduced"]
        assert (f"{claim.title} ({len(held)} of {len(ran)} hold)" in text) == bool(ran)
    assert text.splitlines()[-1] == summary(found)


def test_the_summary_counts_all(found):
    counts = [int(each.split()[0]) for each in summary(found).split(", ")]
    assert sum(counts) == 19


def test_csv_has_one_line_a_part_with_all_its_numbers(found):
    rows = list(csv.DictReader(io.StringIO(claims_csv(found))))
    parts = [(claim, part) for claim in found for part in claim.parts]
    assert len(rows) == len(parts)
    for row, (claim, part) in zip(rows, parts, strict=True):
        assert (row["claim"], row["claim_verdict"], row["verdict"]) == (str(claim.number), claim.verdict, part.verdict)
        assert [float(value) for value in row["values"].split()] == list(part.values)
        assert (row["mean"] or None) == (None if part.mean is None else repr(part.mean))
        assert (row["paper"], row["note"], row["n"]) == (part.paper, part.note, str(part.n))
    assert "nan" not in claims_csv(found).lower()


def test_markdown_has_a_table_a_claim_with_as_many_cells_in_every_row(found):
    text = claims_markdown([*found, one("reproduced")])
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 1 + 20
    for table in tables:
        cells = {len(line.replace("\\|", "").split("|")) for line in table}
        assert len(cells) == 1
    assert sum(len(table) - 2 for table in tables[1:]) == sum(len(claim.parts) for claim in found) + 1
    assert text.rstrip().endswith(FOOTER.rstrip())


def test_the_same_claims_give_the_same_bytes(found):
    again = claims(evidence(setting(), setting("cifar100n-resnet34"), setting(scale="small")))
    assert claims_csv(found) == claims_csv(again)
    assert claims_markdown(found) == claims_markdown(again)
    assert printed(claims_text(found)) == printed(claims_text(again))
