"""The commands about studies, their data and their results."""

import os
import shlex
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from emabank.study.config import Place, ProtocolConfig, PublishedName, Seeds, check, check_share
from emabank.study.serialize import apply_overrides, read_toml
from emabank.study.studies import catalogue
from emabank.study.studies.catalogue import studies_named
from emabank.study.studies.scales import Scale, protocol_of


@dataclass(frozen=True, kw_only=True)
class DemoArguments:
    """Train on digits with wrong labels, and compare weight averages.

    Compares a small network's live weights with five averages of them. Takes about a minute on two CPU cores, needs no
    download, and writes an HTML page, its figure and rows.json.
    """

    epochs: int = 60
    """Passes over the 1297 training images."""
    noise: float = 0.4
    """Share of the training images that get a wrong label, from 0 to 1."""
    seed: int = 0
    """The same seed gives the same numbers on the same machine with the same --threads."""
    out: Path = Path("emabank-demo")
    """Folder for the page, the figure and the numbers; created if missing."""
    threads: int = 1
    """CPU threads. More than one helps little with a network this small."""

    def __post_init__(self) -> None:
        check(self, epochs=1, seed=0, threads=1)
        check_share("noise", self.noise)

    def run(self, words: list[str]) -> None:
        from emabank.study.demo import run_demo

        run_demo(self)


@dataclass(frozen=True, kw_only=True)
class ProtocolArguments:
    """Tune, choose, refit and test with settings of your own.

    Tunes on 80% of the training images, chooses on the rest, refits on all, and measures on the test images. One run
    per seed and learning rate keeps all averages. Each seed then chooses a learning rate, and the average and epoch
    with the best accuracy and with the lowest loss. Run the same command again to resume.

    Example: emabank protocol --noise 0.4 --epochs 20 --seeds 1
    """

    protocol: Annotated[ProtocolConfig, tyro.conf.arg(name="")] = field(default_factory=ProtocolConfig)
    place: Place = field(default_factory=Place)
    config: Path | None = None
    """A TOML file with other defaults. Each box below is a table there, such as [data]; None unsets an option."""
    dry_run: bool = False
    """Print the settings as such a TOML file; train nothing."""

    def __post_init__(self) -> None:
        self.place.check_trackers()  # before the first run, which would look for them only in its own process

    def run(self, words: list[str]) -> None:
        from emabank.study.launch import launch_protocol, show_plan

        if self.dry_run:
            show_plan(self.protocol, self.place)
        else:
            launch_protocol(self.protocol, self.place)


@dataclass(frozen=True, kw_only=True)
class ListArguments:
    """List the paper's studies: what each produces, from how many runs."""

    scale: Scale = "demo"
    """demo: embedded digits, minutes. small: parts of CIFAR and CIFAR-N, four hours on two cores. paper: for a GPU."""

    def run(self, words: list[str]) -> None:
        catalogue.list_studies(self.scale)


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Run one of the paper's studies, or all of them.

    Runs that studies share are trained once. Run the same command again to resume. `emabank list` names the studies.
    """

    study: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]
    """The name of a study, or all."""
    scale: Scale = "demo"
    """demo: embedded digits, minutes. small: parts of CIFAR and CIFAR-N, four hours on two cores. paper: for a GPU."""
    seeds: Seeds | None = None
    """How many seeds, counted from 0; or which, such as 10-19 or 10,12,15. By default 3."""
    set: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Change settings of all runs, such as training.epochs=10 rates=[0.1,0.2]."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto: on a GPU if there is one."""
    place: Place = field(default_factory=Place)
    dry_run: bool = False
    """List the runs, which are done, and how long the others would take on this machine; train nothing."""

    def __post_init__(self) -> None:
        pairs = {pair for study in studies_named(self.study) for pair in study.pairs_at(self.scale)}
        self.place.check_trackers()
        for config in (protocol_of(pair, self.scale) for pair in sorted(pairs)):
            if config is not None:
                self.change(config)

    def change(self, config: ProtocolConfig) -> ProtocolConfig:
        """A protocol with the user's --seeds, --device and --set."""
        seeds = config.seeds if self.seeds is None else self.seeds
        config = replace(config, hardware=replace(config.hardware, device=self.device), seeds=seeds)
        return apply_overrides(config, [setting for group in self.set for setting in group])

    def run(self, words: list[str]) -> int:
        from emabank.study.launch import launch_studies, show_studies_plan

        studies = studies_named(self.study)
        if self.dry_run:
            show_studies_plan(studies, self.scale, self.place, change=self.change)
            return 0
        command = shlex.join(["emabank", *words])
        done = launch_studies(studies, self.scale, self.place, command=command, change=self.change)
        return 0 if done else 1


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Make tables, figures and an HTML page from a folder of runs."""

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""
    out: Path | None = None
    """Where to write. By default the folder report inside the folder of runs."""
    tables: str = ""
    """Print the tables whose names contain this, or all. By default the headline table."""

    def run(self, words: list[str]) -> None:
        from emabank.study.reporting import make_report

        make_report(self.runs, self.out, tables=self.tables)


@dataclass(frozen=True, kw_only=True)
class ClaimsArguments:
    """Check the paper's claims against a folder of runs.

    Shows the primary statistic, interval, seeds and verdict of each of the nineteen claims.
    """

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""
    all: bool = False
    """Also show the secondary statistics per setting, which do not count for the verdict."""

    def run(self, words: list[str]) -> None:
        from emabank.study.reporting import show_claims

        show_claims(self.runs, secondary=self.all)


@dataclass(frozen=True, kw_only=True)
class StatusArguments:
    """Show the progress of the studies and runs in a folder."""

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""

    def run(self, words: list[str]) -> None:
        from emabank.study.status import show_status

        show_status(self.runs)


@dataclass(frozen=True, kw_only=True)
class AdviseArguments:
    """Recommend which weights of a run to ship.

    Names the average and epoch, the gain over the live weights, and when training could have stopped.
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[RUN]")] = Path("runs")
    """The folder of one run, or the folder that `emabank run` wrote to."""
    criterion: Literal["accuracy", "loss"] = "accuracy"
    """What to optimise on the validation images."""

    def run(self, words: list[str]) -> None:
        from emabank.study.advise import show_advice

        show_advice(self.folder, self.criterion)


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Check the files of a data set against published checksums, or fetch them."""

    action: tyro.conf.Positional[Literal["check", "fetch"]]
    """check: report missing and damaged files and their sources; fetch: download them."""
    name: tyro.conf.Positional[PublishedName]
    """The data set."""
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


# A configuration file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _File(ProtocolConfig):
    """The tables and keys of a TOML file."""

    place: Place = field(default_factory=Place)


@dataclass(frozen=True, kw_only=True)
class _WhichFile:
    config: Path | None = None


def protocol_defaults(words: list[str]) -> ProtocolArguments:
    """The defaults of the command `protocol`: those of the TOML file of `--config`, if there is one."""
    named, _ = tyro.cli(_WhichFile, prog="emabank protocol", args=words, add_help=False, return_unknown_args=True)
    path = named.config
    if path is None:
        return ProtocolArguments()
    if not os.path.isfile(path):
        raise ValueError(f"--config must be a TOML file; got {path}, which does not exist or is a folder")
    file = read_toml(path, _File)
    for key, value in (("data: dataset", file.data.dataset), ("training: network", file.training.network)):
        if value == "own":
            raise ValueError(f"{path}, {key} is own, which needs Python: use emabank.study.run_protocol")
    protocol = ProtocolConfig(**{field.name: getattr(file, field.name) for field in fields(ProtocolConfig)})
    return ProtocolArguments(protocol=protocol, place=file.place, config=path)
