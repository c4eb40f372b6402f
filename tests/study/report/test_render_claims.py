"""The claims on a terminal of 80 columns, as Markdown, CSV and JSON: nothing is cut, and all have the same numbers."""

import csv
import io
import json

import pytest
from rich.console import Console

from emabank.study.report.claim_specs import make_claims
from emabank.study.report.claims import Claim, Finding, above
from emabank.study.report.render_claims import (
    claims_csv,
    claims_json,
    claims_summary,
    claims_terminal,
)
from emabank.study.report.results import Results
from tests.study.report.shapes import chosen_with_noisy_labels, results, setting

FIELDS = ["claim", "role", "setting", "statistic", "mean", "low", "high", "n", "seeds_for", "rule", "verdict"]


@pytest.fixture(scope="module")
def claims():
    noisy = chosen_with_noisy_labels(setting("cifar100n-resnet34"))
    return make_claims(results(setting(), setting("cifar100-vgg16"), noisy, setting(scale="small")))


def printed(renderable, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def one(verdict: str = "reproduced", *others: Finding, **more) -> Claim:
    primary = finding(verdict, role="primary", **more)
    return Claim(number="7", title="It gains [a lot] | and more", studies=["dynamics"], findings=(primary, *others),
                 note="an honest word")  # fmt: skip


def finding(verdict: str, **more) -> Finding:
    fields = {
        "role": "secondary", "key": "gain", "statistic": "gain, points", "setting": "digits", "scale": "demo",
        "by_seed": {10: 1.0, 11: -2.0, 12: 3.0}, "mean": 2.0, "low": -0.484, "high": 4.484, "rule": above(),
        "verdict": verdict,
    }  # fmt: skip
    return Finding(**{**fields, **more})


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("secondary", [False, True])
def test_no_line_is_too_long_and_nothing_is_cut(claims, width, secondary):
    lines = printed(claims_terminal(claims, secondary=secondary), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)


def test_a_claim_has_a_row_with_its_mean_interval_seeds_and_verdict():
    lines = printed(claims_terminal([one("inconclusive")])).splitlines()
    assert lines[2].split() == ["7", "gain,", "points:", "above", "0", "2.00", "2", "of", "3", "inconclusive"]
    assert lines[3].split() == ["[-0.48,", "4.48]"]


def test_an_exception_stands_below_its_claim():
    text = printed(claims_terminal([one("reproduced", finding("not reproduced", setting="letters", mean=-1.0))]))
    assert "except letters" in text
    assert "except" not in printed(claims_terminal([one("reproduced", finding("inconclusive"))]))


def test_only_a_longer_look_has_the_secondary_statistics(claims):
    short, long = (printed(claims_terminal(claims, secondary=secondary), 200) for secondary in (False, True))
    for claim in claims:
        for own in claim.findings:
            assert own.statistic in long or claim.verdict == "not run"
    words = "slowest (acc.) minus SWA, test accuracy, points"
    assert words in long and words not in short


def test_what_was_not_run_says_what_to_run_in_one_place():
    text = printed(claims_terminal(make_claims(Results())), width=2000)
    (line,) = [line for line in text.splitlines() if line.startswith("Not run: ")]
    assert line == f"Not run: {', '.join([*map(str, range(1, 20)), 'b', 'c'])}."
    text = printed(claims_terminal(make_claims(Results()), secondary=True), width=2000)
    assert "11. not run: emabank run bootstrap\n" in text
    assert "19. not run: emabank run label-noise --scale paper\n" in text
    assert "19 not run" in text


def test_small_numbers_keep_their_digits_and_none_has_no_interval():
    assert "0.0625" in printed(claims_terminal([one(mean=0.0625, low=0.06, high=0.065)]))
    lines = printed(claims_terminal([one("too few runs", low=None, high=None, by_seed={10: 2.0})])).splitlines()
    assert lines[2].split()[5:] == ["2.00", "1", "of", "1", "too", "few", "runs"]
    text = printed(claims_terminal([one("too few runs", mean=None, low=None, high=None, by_seed={})]))
    assert "None" not in text and "0 of 0" not in text


def test_the_summary_counts_the_papers_claims(claims):
    counts = [int(count.split()[0]) for count in claims_summary(claims).split(", ")]
    assert sum(counts) == 19 < len(claims)


def test_csv_and_json_have_one_entry_a_finding_with_all_its_numbers(claims):
    rows = list(csv.DictReader(io.StringIO(claims_csv(claims))))
    entries = json.loads(claims_json(claims))
    findings = [(claim, own) for claim in claims for own in claim.findings]
    assert list(rows[0])[: len(FIELDS)] == list(entries[0])[: len(FIELDS)] == FIELDS
    for row, entry, (claim, own) in zip(rows, entries, findings, strict=True):
        assert (row["claim"], row["verdict"], row["setting"]) == (claim.number, own.verdict, own.setting)
        assert (row["n"], row["seeds_for"], row["rule"]) == (str(own.n), str(own.seeds_for), own.rule.text)
        assert (entry["mean"], entry["low"], entry["high"]) == (own.mean, own.low, own.high)
        assert [float(row[name]) if row[name] else None for name in ("mean", "low", "high")] == [
            entry["mean"], entry["low"], entry["high"],
        ]  # fmt: skip
        by_seed = dict(part.split(":") for part in row["by_seed"].split())
        assert {int(seed): float(value) for seed, value in by_seed.items()} == own.by_seed
        assert {int(seed): value for seed, value in entry["by_seed"].items()} == own.by_seed
    assert {row["role"] for row in rows} == {"primary", "secondary", "beyond"}
    assert "nan" not in claims_csv(claims).lower()
