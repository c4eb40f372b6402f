"""The page about the studies: its table has every study with what it makes, and the claims that are asked of it."""

import re

from pages import ROOT

from emabank.study.report.claim_specs import make_claims
from emabank.study.report.results import Results
from emabank.study.studies.catalogue import STUDIES

PAGE = (ROOT / "docs" / "studies.md").read_text()


def test_its_table_is_that_of_the_catalogue_and_the_claims():
    asked = {name: [str(claim.number) for claim in make_claims(Results()) if name in claim.studies] for name in STUDIES}
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| [^|]+ \| ([\d, –]+) \|$", PAGE, re.MULTILINE)
    assert rows == [(name, study.makes, ", ".join(asked[name]) or "–") for name, study in STUDIES.items()]
