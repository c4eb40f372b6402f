"""The command `data`: checks the files of a data set, and fetches them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from emabank.study.config import PublishedName


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Check the files of a data set against published checksums, or fetch them."""

    action: tyro.conf.Positional[Literal["check", "fetch"]]
    """check says what is missing or damaged and where it comes from; fetch downloads it."""
    name: tyro.conf.Positional[PublishedName]
    """Which data set."""
    data: Path = Path("data")
    """Folder with the data sets."""

    def run(self, words: list[str]) -> int:
        from rich.console import Console

        from emabank.study.data.catalogue import find_dataset
        from emabank.study.data.download import check, fetch, is_complete
        from emabank.study.executors.progress import counting, say

        console, dataset = Console(), find_dataset(self.name)
        if self.action == "check":
            findings = check(self.name, self.data)
        else:
            with counting(Console(stderr=True), "bytes") as progress:
                findings = fetch(self.name, self.data, progress=progress)
        say(console, f"{dataset.title}: published by {dataset.publisher}; terms: {dataset.terms}")
        for finding in findings:
            say(console, f"{finding.state:15} {finding.sentence}")
        if is_complete(findings):
            say(console, f"{self.name}: complete")
            return 0
        command = f"emabank data fetch {self.name} --data {self.data}"
        say(console, f"{self.name}: not complete; `{command}` downloads what is missing or wrong")
        return 1
