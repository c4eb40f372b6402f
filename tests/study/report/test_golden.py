"""The report of one real folder of runs, compared with a stored report.

golden/runs.tar.xz is what `emabank run all --scale demo --seeds 3 --set training.epochs=8
averages.half_lives=[1.8,3.5,7.1]` wrote, without weights, logs and most predictions; its summaries are those of an
earlier emabank. golden/report.tar.xz has every table in three formats, the claims, the data of the figures, and the
page. After an intended change, run `PYTHONPATH=tests:src python tests/study/report/test_golden.py`.
"""

import io
import json
import lzma
import re
import tarfile
from pathlib import Path

import pytest

import emabank
from emabank.study.report.claim_specs import make_claims
from emabank.study.report.figure_specs import make_figures
from emabank.study.report.page import figure_json, page
from emabank.study.report.render_claims import claims_csv, claims_markdown
from emabank.study.report.results import read_results
from emabank.study.report.table_specs import make_tables
from emabank.study.report.write import FORMS

GOLDEN = Path(__file__).parent / "golden"


def report_of(runs: Path) -> dict[str, str]:
    """Every part of a report, by name."""
    results = read_results(runs)
    tables, figures, claims = make_tables(results), make_figures(results), make_claims(results)
    texts = {f"{table.name}{ending}": form(table) for table in tables for ending, form in FORMS.items()}
    texts |= {"claims.md": claims_markdown(claims), "claims.csv": claims_csv(claims)}
    for figure in figures:
        about = {"title": figure.title, "caption": figure.caption, "item": figure.item, "notes": list(figure.notes)}
        texts[f"{figure.name}.json"] = json.dumps(
            {**about, **json.loads(figure_json(figure))}, ensure_ascii=False, indent=1
        )
    text = page(results, tables, figures, claims)
    # Styles, scripts and their hashes may change; the data of the figures is compared above.
    return texts | {
        "page.html": re.sub(r"<style>.*?</style>|<script.*?</script>|<meta http.*?>", "", text, flags=re.DOTALL)
    }


def rounded(text: str) -> str:
    """Round to nine digits, because the last ones depend on the machine."""
    return re.sub(r"-?\d+\.\d{10,}(?:e-\d+)?", lambda found: f"{float(found[0]):.9f}", text)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "runs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return report_of(folder / "runs")


@pytest.fixture(scope="module")
def golden() -> dict[str, str]:
    with tarfile.open(GOLDEN / "report.tar.xz") as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]


def test_the_report_has_the_same_parts(report: dict[str, str], golden: dict[str, str]):
    assert sorted(report) == sorted(golden) and len(report) > 100


@pytest.mark.parametrize("kind", [".csv", ".md", ".tex", ".json", ".html"])
def test_every_part_is_unchanged(kind: str, report: dict[str, str], golden: dict[str, str]):
    for name in (name for name in golden if name.endswith(kind)):
        for line, (now, before) in enumerate(zip(report[name].splitlines(), golden[name].splitlines(), strict=True), 1):
            assert rounded(now) == rounded(before), f"{name}, line {line}"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(GOLDEN / "runs.tar.xz") as archive:
            archive.extractall(unpacked, filter="data")
        texts = report_of(Path(unpacked) / "runs")
    with lzma.open(GOLDEN / "report.tar.xz", "w") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in sorted(texts.items()):
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    print(f"{len(texts)} texts, emabank {emabank.__version__}")
