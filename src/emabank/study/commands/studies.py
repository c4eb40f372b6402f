"""The commands about studies and their results: demo, list, run, protocol, status, report, claims, advise."""

import os
import shlex
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from emabank.study.config import Place, ProtocolConfig, Seeds, check, check_share
from emabank.study.serialize import apply_overrides, read_toml
from emabank.study.studies.catalogue import studies_named
from emabank.study.studies.scales import Scale, protocol_of


@dataclass(frozen=True, kw_only=True)
class DemoArguments:
    """Train on digits with wrong labels, and compare weight averages.

    A small network, its live weights and five averages of them. It takes about a minute on two CPU cores, needs no
    download, and writes a page to look at, its figure and rows.json.
    """

    epochs: int = 60
    """How often the network sees the 1297 training images."""
    noise: float = 0.4
    """Share of the training images that get a wrong label, from 0 to 1."""
    seed: int = 0
    """The same seed gives the same numbers, on the same machine with the same number of threads."""
    out: Path = Path("emabank-demo")
    """Folder for the figure and the numbers; made if it is not there."""
    threads: int = 1
    """CPU threads. So small a network gains little from more, and one gives the same numbers whatever else runs."""

    def __post_init__(self) -> None:
        check(self, epochs=1, seed=0, threads=1)
        check_share("noise", self.noise)

    def run(self, words: list[str]) -> None:
        from emabank.study.demo import run_demo

        run_demo(self)


@dataclass(frozen=True, kw_only=True)
class ProtocolArguments:
    """Tune, choose, refit and test with settings of your own.

    Tune on 80% of the training images, choose on the rest, refit on all, and measure on the test images. For each seed
    and learning rate one run is trained, with the averages beside it; each seed chooses a learning rate, and for best
    accuracy and lowest loss the average and the epoch. The same command resumes where it was interrupted, and does
    nothing where all is done. To see it at work: emabank protocol --noise 0.4 --epochs 20 --seeds 1
    """

    protocol: Annotated[ProtocolConfig, tyro.conf.arg(name="")] = field(default_factory=ProtocolConfig)
    place: Place = field(default_factory=Place)
    config: Path | None = None
    """A TOML file with other defaults; a box below is a table there, such as [data]. `None` undoes one of them."""
    dry_run: bool = False
    """Say what would be trained, as such a TOML file, and train nothing."""

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
    """List the paper's studies: what each makes, from how many runs."""

    scale: Scale = "demo"
    """demo: embedded digits, minutes. small: parts of CIFAR and CIFAR-N, a day on a CPU. paper: for a GPU."""

    def run(self, words: list[str]) -> None:
        from emabank.study.studies.listing import list_studies

        list_studies(self.scale)


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Run one of the paper's studies, or all of them.

    Runs that studies share are trained once. Run the same command again to resume. `emabank list` names the studies.
    """

    study: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]
    """Its name, or all."""
    scale: Scale = "demo"
    """demo: embedded digits, minutes. small: parts of CIFAR and CIFAR-N, a day on a CPU. paper: for a GPU."""
    seeds: Seeds | None = None
    """How many seeds, from 0 on; or which, as 10-19 or 10,12,15. By default 3."""
    set: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Other settings for all that is trained, such as training.epochs=10 rates=[0.1,0.2]. By default none."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto: a GPU where there is one."""
    place: Place = field(default_factory=Place)
    dry_run: bool = False
    """Say which runs there are, which are done, and what the others would cost on this machine; train nothing."""

    def __post_init__(self) -> None:
        pairs = {pair for study in studies_named(self.study) for pair in study.pairs_at(self.scale)}
        self.place.check_trackers()
        for config in (protocol_of(pair, self.scale) for pair in sorted(pairs)):
            if config is not None:
                self.change(config)

    def change(self, config: ProtocolConfig) -> ProtocolConfig:
        """A protocol with the settings that were asked for."""
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
    """Where to write. By default the folder report in that of the runs."""
    tables: str = ""
    """Print the tables that have this in their name, or all. By default the headline."""

    def run(self, words: list[str]) -> None:
        from emabank.study.reporting import make_report

        make_report(self.runs, self.out, tables=self.tables)


@dataclass(frozen=True, kw_only=True)
class ClaimsArguments:
    """Check the paper's claims against a folder of runs.

    For each of the nineteen: primary statistic, interval, seeds, verdict.
    """

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""
    all: bool = False
    """Show the secondary statistics too, setting by setting; they decide nothing."""

    def run(self, words: list[str]) -> None:
        from emabank.study.reporting import show_claims

        show_claims(self.runs, secondary=self.all)


@dataclass(frozen=True, kw_only=True)
class StatusArguments:
    """Show how far the studies and runs of a folder are."""

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""

    def run(self, words: list[str]) -> None:
        from emabank.study.status import show_status

        show_status(self.runs)


@dataclass(frozen=True, kw_only=True)
class AdviseArguments:
    """Say which weights of a run to ship.

    Which average, of which epoch, with what gain, and whether it could have stopped earlier.
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")] = Path("runs")
    """The folder of a run, or a folder of runs, such as `emabank run` wrote."""
    criterion: Literal["accuracy", "loss"] = "accuracy"
    """What is to be best on validation images."""

    def run(self, words: list[str]) -> None:
        from emabank.study.advise import show_advice

        show_advice(self.folder, self.criterion)


# A configuration file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _File(ProtocolConfig):
    """What a TOML file may hold."""

    place: Place = field(default_factory=Place)


@dataclass(frozen=True, kw_only=True)
class _WhichFile:
    config: Path | None = None


def protocol_defaults(words: list[str]) -> ProtocolArguments:
    """The defaults of the command `protocol`: those of the TOML file that `--config` names, if there is one."""
    named, _ = tyro.cli(_WhichFile, prog="emabank protocol", args=words, add_help=False, return_unknown_args=True)
    path = named.config
    if path is None:
        return ProtocolArguments()
    if not os.path.isfile(path):
        raise ValueError(f"--config is {path}, which is no file; give a TOML file")
    file = read_toml(path, _File)
    for key, value in (("data: dataset", file.data.dataset), ("training: network", file.training.network)):
        if value == "own":
            raise ValueError(f"{path}, {key} is own, which no command can know; use emabank.study.run_protocol for it")
    protocol = ProtocolConfig(**{field.name: getattr(file, field.name) for field in fields(ProtocolConfig)})
    return ProtocolArguments(protocol=protocol, place=file.place, config=path)
