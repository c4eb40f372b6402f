"""What the commands are told: the configurations as tyro makes a command line of them. Imports tyro and config.

tyro reads unchecked copies of them; the real ones are built from these, and say in a sentence what they refuse.
"""

import os
from dataclasses import Field, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import tyro

from emabank.study.config import DemoConfig, Place, ProtocolConfig, PublishedName, check_at_least
from emabank.study.own_arguments import AverageArguments, BenchArguments, DecayArguments
from emabank.study.report.pairs import Scale
from emabank.study.serialize import apply_overrides, read_toml
from emabank.study.studies.catalogue import studies_named
from emabank.study.studies.scales import protocol_of

_PROG = "emabank"
_MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


@dataclass(frozen=True, kw_only=True)
class ProtocolArguments:
    """Tune on 80% of the training images, choose on the rest, refit on all, and measure on the test images.

    For each seed and learning rate one run is trained, with the averages beside it; each seed chooses a learning rate,
    and for best accuracy and lowest loss the average and the epoch. The same command goes on where it was interrupted,
    and does nothing where all is done. To see it at work: emabank protocol --noise 0.4 --epochs 20 --seeds 1
    """

    protocol: Annotated[ProtocolConfig, tyro.conf.arg(name="")] = field(default_factory=ProtocolConfig)
    place: Place = field(default_factory=Place)
    config: Path | None = None
    """A TOML file with other defaults; a box below is a table there, such as [data]. `None` undoes one of them."""
    dry_run: bool = False
    """Say what would be trained, as such a TOML file, and train nothing."""

    def __post_init__(self) -> None:
        self.place.check_trackers()  # before the first run, which would look for them only in its own process


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Verify the files of a data set against the published checksums, or download them."""

    action: tyro.conf.Positional[Literal["check", "fetch"]]
    """check says what is missing or damaged and where it comes from; fetch downloads it."""
    name: tyro.conf.Positional[PublishedName]
    """Which data set."""
    data: Path = Path("data")
    """Folder with the data sets."""


@dataclass(frozen=True, kw_only=True)
class ListArguments:
    """Say which studies there are: what each makes, from which runs."""

    scale: Scale = "demo"
    """demo: embedded digits, minutes. small: parts of CIFAR-10 and CIFAR-10N, hours on a CPU. paper: for a GPU."""


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Carry out a study of the paper, or all of them; runs that studies share are trained once.

    The same command goes on where it was interrupted. `emabank list` names the studies.
    """

    study: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]
    """Its name, or all."""
    scale: Scale = "demo"
    """demo: embedded digits, minutes. small: parts of CIFAR-10 and CIFAR-10N, hours on a CPU. paper: for a GPU."""
    seeds: int | None = None
    """How many seeds, from 0 on. By default 3."""
    set: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Other settings for all that is trained, such as training.epochs=10 rates=[0.1,0.2]. By default none."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto: a GPU where there is one."""
    place: Place = field(default_factory=Place)
    dry_run: bool = False
    """Say which runs there are, which are done, and what the others would cost on this machine; train nothing."""

    def __post_init__(self) -> None:
        check_at_least("seeds", self.seeds, 1)
        pairs = {pair for study in studies_named(self.study) for pair in study.pairs_at(self.scale)}
        self.place.check_trackers()
        for config in (protocol_of(pair, self.scale) for pair in sorted(pairs)):
            if config is not None:
                self.change(config)

    def change(self, config: ProtocolConfig) -> ProtocolConfig:
        """A protocol with the settings that were asked for."""
        seeds = {} if self.seeds is None else {"seeds": self.seeds}
        config = replace(config, hardware=replace(config.hardware, device=self.device), **seeds)
        return apply_overrides(config, [each for some in self.set for each in some])


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Make tables, figures and one HTML page of all studies in a folder of runs."""

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""
    out: Path | None = None
    """Where to write. By default the folder report in that of the runs."""
    tables: str = ""
    """Print the tables that have this in their name, or all. By default the headline."""


@dataclass(frozen=True, kw_only=True)
class ClaimsArguments:
    """Hold the paper's nineteen claims against the runs of a folder: statistic, interval, verdict."""

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""
    short: bool = False
    """Verdicts only."""


@dataclass(frozen=True, kw_only=True)
class StatusArguments:
    """Say how far the studies and runs of a folder are."""

    runs: tyro.conf.Positional[Path] = Path("runs")
    """The folder that `emabank run` wrote to."""


@dataclass(frozen=True, kw_only=True)
class AdviseArguments:
    """Say which weights of a run to ship: which average, of which epoch, with what gain, and whether it could have
    stopped earlier.
    """

    run: tyro.conf.Positional[Path]
    """The folder of a run, or a folder of runs, such as `emabank run` wrote."""
    criterion: Literal["accuracy", "loss"] = "accuracy"
    """What is to be best on validation images."""


Arguments = (
    DemoConfig
    | ListArguments
    | RunArguments
    | StatusArguments
    | ReportArguments
    | ClaimsArguments
    | AdviseArguments
    | ProtocolArguments
    | DataArguments
    | AverageArguments
    | DecayArguments
    | BenchArguments
)
COMMANDS: dict[str, type[Arguments]] = {
    "demo": DemoConfig,
    "list": ListArguments,
    "run": RunArguments,
    "status": StatusArguments,
    "report": ReportArguments,
    "claims": ClaimsArguments,
    "advise": AdviseArguments,
    "protocol": ProtocolArguments,
    "data": DataArguments,
    "average": AverageArguments,
    "decay": DecayArguments,
    "bench": BenchArguments,
}


def parse(given: list[str], *, description: str) -> Arguments:
    """The arguments of one command, from the words after `emabank`.

    Ends the process, as argparse does, where help is asked for or words make no sense; raises `ValueError` where their
    values are refused.

    >>> parse(["demo", "--epochs", "3"], description="").epochs
    3
    """
    if given[0] not in COMMANDS:
        every_one: Any = _every_command(with_options=_may_name_options(given))
        words = tyro.cli(every_one, prog=_PROG, description=description, args=given, config=_MARKERS)
        return _checked(words.command)
    command, words = f"{_PROG} {given[0]}", given[1:]
    try:
        defaults = _defaults(words, prog=command) if given[0] == "protocol" else None
        kind: Any = _unchecked(COMMANDS[given[0]])
        more = {} if defaults is None else {"default": _loose(kind, defaults)}
        return _checked(tyro.cli(kind, prog=command, args=words, config=_MARKERS, **more))
    except ValueError as error:
        raise ValueError(f"{error} (`{command} --help` explains every option)") from error


def _may_name_options(given: list[str]) -> bool:
    """Whether an answer to words without a command in front may depend on the options of commands.

    It does where a command comes later, and where tyro looks for options that are spelt nearly so.
    """
    return any(word in COMMANDS or (word.startswith("--") and word != "--help") for word in given)


def _every_command(*, with_options: bool) -> type[Any]:
    """All commands as tyro takes them; without their options that is quick, and enough to name and explain them.

    They are the field of a class: for anything else tyro has a class of its own, and reads all of `typing` for what may
    be said there about its field.
    """
    kinds = {name: _unchecked(kind) if with_options else _explained(kind) for name, kind in COMMANDS.items()}
    marked = [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in kinds.items()]
    union: Any = Union[tuple(marked)]  # noqa: UP007  # it has no other form for kinds that are not known before
    return make_dataclass("EveryCommand", [("command", Annotated[union, tyro.conf.arg(name="")])])


def _explained(kind: type[Any]) -> type[Any]:
    """A class without fields that is explained like this one."""
    return make_dataclass(kind.__name__, [], namespace={"__doc__": kind.__doc__})


# A configuration file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _File(ProtocolConfig):
    """What a TOML file may hold."""

    place: Place = field(default_factory=Place)


@dataclass(frozen=True, kw_only=True)
class _WhichFile:
    config: Path | None = None


def _defaults(words: list[str], *, prog: str) -> ProtocolArguments:
    """The defaults of the command `protocol`: those of the TOML file that `--config` names, if there is one."""
    named, _ = tyro.cli(_WhichFile, prog=prog, args=words, add_help=False, return_unknown_args=True)
    path = named.config
    if path is None:
        return ProtocolArguments()
    if not os.path.isfile(path):
        raise ValueError(f"--config is {path}, which is no file; give a TOML file")
    read = read_toml(path, _File)
    for key, value in (("data: dataset", read.data.dataset), ("training: network", read.training.network)):
        if value == "own":
            raise ValueError(f"{path}, {key} is own, which no command can know; use emabank.study.run_protocol for it")
    protocol = ProtocolConfig(**{each.name: getattr(read, each.name) for each in fields(ProtocolConfig)})
    return ProtocolArguments(protocol=protocol, place=read.place, config=path)


# Unchecked copies ----------------------------------------------------------------------------------------------------


@cache
def _unchecked(kind: type[Any]) -> type[Any]:
    """A class like this one that takes any values, with its fields described as a command line needs it.

    tyro has words of its own around what a class says when it refuses values, and each version other ones. Explanations
    are inherited: tyro finds them in the source of the class below.
    """
    hints, plain_hints = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    described = [
        (each.name, *_described(each, hints[each.name], plain_hints[each.name])) for each in fields(cast("Any", kind))
    ]
    body = {"__doc__": kind.__doc__, "__post_init__": lambda self: None}  # type: ignore[misc]
    return make_dataclass(kind.__name__, described, bases=(kind,), namespace=body, frozen=True, kw_only=True)


def _described(known: "Field[Any]", hint: Any, kind: Any) -> tuple[Any, Any]:
    """The annotation and the default of a field."""
    if is_dataclass(kind):
        inner = _unchecked(cast("type[Any]", kind))
        marks = getattr(hint, "__metadata__", ())
        return (Annotated[(inner, *marks)] if marks else inner), field(default_factory=inner)
    if get_origin(kind) is Literal and "own" in get_args(kind):  # for Python alone
        hint = kind = Literal[tuple(each for each in get_args(kind) if each != "own")]  # type: ignore[valid-type]
    shown: dict[str, Any] = {"help_behavior_hint": _default_in_words}
    if NoneType in get_args(kind):
        shown["metavar"] = _metavar(next(each for each in get_args(kind) if each is not NoneType))
    return Annotated[hint, tyro.conf.arg(**shown)], field(default=known.default)


def _default_in_words(default: str) -> str:
    """What help adds to an explanation; one of a field without a default says itself what happens then."""
    return "" if default in ("None", "", "''") else f"(default: {default})"


def _metavar(kind: Any) -> str:
    """How the value of a field that may be left out is called: without None, which is allowed and rarely wanted."""
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    return "{True,False}" if kind is bool else kind.__name__.upper()


def _loose(kind: type[Any], value: Any) -> Any:
    """An unchecked copy of a configuration."""
    hints = get_type_hints(kind)
    values = {each.name: getattr(value, each.name) for each in fields(value)}
    return kind(**{name: _loose(hints[name], each) if is_dataclass(each) else each for name, each in values.items()})


def _checked(value: Any) -> Any:
    """The configuration that an unchecked copy stands for, or its refusal."""
    (kind,) = type(value).__bases__
    values = {each.name: getattr(value, each.name) for each in fields(value)}
    return kind(**{name: _checked(each) if is_dataclass(each) else each for name, each in values.items()})
