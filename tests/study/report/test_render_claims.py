"""The claims on a terminal, as CSV and as JSON: nothing is cut, and the numbers agree."""

import csv
import io
import json

import pytest
from rich.console import Console

from emabank.study.report.claim_specs import make_claims
from emabank.study.report.claims import Claim, Finding, above
from emabank.study.report.render_claims import claims_csv, claims_json, claims_terminal
from emabank.study.report.results import Results
from tests.study.report.example_results import chosen_with_noisy_labels, make_results, make_setting


@pytest.fixture(scope="module")
def claims():
    noisy = chosen_with_noisy_labels(make_setting("cifar100n-resnet34"))
    return make_claims(make_results(make_setting(), make_setting("cifar100-vgg16"), noisy, make_setting(scale="small")))


def output_of(renderable, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def make_claim(verdict: str = "reproduced", *secondary: Finding, **more) -> Claim:
    primary = make_finding(verdict, role="primary", **more)
    return Claim(number="7", title="EMA gains [a lot] | and more", studies=["dynamics"],
                 findings=(primary, *secondary), note="a note")  # fmt: skip


def make_finding(verdict: str, **more) -> Finding:
    fields = {
        "role": "secondary", "key": "gain", "statistic": "gain, points", "setting": "digits", "scale": "demo",
        "by_seed": {10: 1.0, 11: -2.0, 12: 3.0}, "mean": 2.0, "low": -0.484, "high": 4.484, "rule": above(),
        "verdict": verdict,
    }  # fmt: skip
    return Finding(**{**fields, **more})


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("secondary", [False, True])
def test_lines_fit_the_terminal_and_nothing_is_cut(claims, width, secondary):
    lines = output_of(claims_terminal(claims, secondary=secondary), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)


def test_a_claim_has_a_row_with_its_mean_interval_seeds_and_verdict():
    lines = output_of(claims_terminal([make_claim("inconclusive")])).splitlines()
    assert lines[2].split() == ["7", "gain,", "points:", "above", "0", "2.00", "2", "of", "3", "inconclusive"]
    assert lines[3].split() == ["[-0.48,", "4.48]"]


def test_an_exception_is_listed_below_its_claim():
    text = output_of(
        claims_terminal([make_claim("reproduced", make_finding("not reproduced", setting="letters", mean=-1.0))])
    )
    assert "except letters" in text
    assert "except" not in output_of(claims_terminal([make_claim("reproduced", make_finding("inconclusive"))]))


def test_secondary_statistics_are_shown_on_request(claims):
    short, long = (output_of(claims_terminal(claims, secondary=secondary), 200) for secondary in (False, True))
    for claim in claims:
        for own in claim.findings:
            assert own.statistic in long or claim.verdict == "not run"
    statistic = "slowest (acc.) minus SWA, test accuracy, points"
    assert statistic in long and statistic not in short


def test_claims_that_were_not_run_name_the_command():
    text = output_of(claims_terminal(make_claims(Results())), width=2000)
    (line,) = [line for line in text.splitlines() if line.startswith("Not run: ")]
    assert line == f"Not run: {', '.join([*map(str, range(1, 20)), 'b', 'c'])}."
    text = output_of(claims_terminal(make_claims(Results()), secondary=True), width=2000)
    assert "11. not run: emabank run bootstrap\n" in text
    assert "19. not run: emabank run label-noise --scale paper\n" in text
    assert "19 not run" in text


def test_small_numbers_keep_their_digits_and_missing_ones_are_blank():
    assert "0.0625" in output_of(claims_terminal([make_claim(mean=0.0625, low=0.06, high=0.065)]))
    lines = output_of(
        claims_terminal([make_claim("too few runs", low=None, high=None, by_seed={10: 2.0})])
    ).splitlines()
    assert lines[2].split()[5:] == ["2.00", "1", "of", "1", "too", "few", "runs"]
    text = output_of(claims_terminal([make_claim("too few runs", mean=None, low=None, high=None, by_seed={})]))
    assert "None" not in text and "0 of 0" not in text


def test_json_has_the_rows_of_the_csv_with_all_numbers_of_each_finding(claims):
    rows = list(csv.DictReader(io.StringIO(claims_csv(claims))))
    entries = json.loads(claims_json(claims))
    findings = [(claim, own) for claim in claims for own in claim.findings]
    for row, entry, (claim, own) in zip(rows, entries, findings, strict=True):
        assert list(row) == list(entry)
        assert (entry["claim"], entry["verdict"], entry["rule"]) == (claim.number, own.verdict, own.rule.text)
        assert (entry["mean"], entry["low"], entry["high"], entry["n"]) == (own.mean, own.low, own.high, own.n)
        assert {int(seed): value for seed, value in entry["by_seed"].items()} == own.by_seed
