"""From words to a command, with tyro."""

import sys
from types import NoneType
from typing import Any, get_args

import tyro

from emabank.study.commands.average import AverageArguments
from emabank.study.commands.bench import BenchArguments
from emabank.study.commands.data import DataArguments
from emabank.study.commands.decay import DecayArguments
from emabank.study.commands.studies import (
    AdviseArguments,
    ClaimsArguments,
    DemoArguments,
    ListArguments,
    ProtocolArguments,
    ReportArguments,
    RunArguments,
    StatusArguments,
    protocol_defaults,
)
from emabank.study.config import Seeds, did_you_mean, parse_seeds

COMMANDS: dict[str, type[Any]] = {
    "demo": DemoArguments,
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
_MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
_NUMBERS = {int: ("INT", "a whole number, such as 3"), float: ("FLOAT", "a number, such as 0.5")}

_REGISTRY = tyro.constructors.ConstructorRegistry()


def parse(words: list[str], *, description: str) -> Any:
    """The command that the words after `emabank` mean, with its arguments.

    Ends the process, as argparse does, where help is asked for or the words are refused; `ValueError` where a file of
    settings does not fit.
    """
    name, *rest = words
    if name in ("-h", "--help"):
        print(_help(description))
        sys.exit(0)
    if name not in COMMANDS:
        close = did_you_mean(name, COMMANDS)
        print(f"emabank: there is no command {name!r}{close}; `emabank --help` lists the commands", file=sys.stderr)
        sys.exit(2)
    defaults: dict[str, Any] = {"default": protocol_defaults(rest)} if name == "protocol" else {}
    return tyro.cli(COMMANDS[name], prog=f"emabank {name}", args=rest, config=_MARKERS, registry=_REGISTRY, **defaults)


def _help(description: str) -> str:
    """One line per command: the first of its class's docstring."""
    lines = [f"  {name:9} {(kind.__doc__ or '').splitlines()[0]}" for name, kind in COMMANDS.items()]
    return "\n".join(["usage: emabank COMMAND [OPTIONS]", "", description, "", *lines])


# How values are written on a command line ----------------------------------------------------------------------------


@_REGISTRY.primitive_rule
def _number(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """A number, or None; tyro's own errors name literals and <class 'NoneType'>."""
    kinds = set(get_args(info.type)) or {info.type}
    numbers = kinds - {NoneType}
    if len(numbers) != 1 or not numbers <= set(_NUMBERS):
        return None
    (number,) = numbers
    metavar, words = _NUMBERS[number]

    def read(texts: list[str]) -> Any:
        if texts[0] == "None" and NoneType in kinds:
            return None
        try:
            return number(texts[0])
        except ValueError:
            raise ValueError(f"give {words}; got {texts[0]!r}") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: (value is None and NoneType in kinds) or isinstance(value, int | float),
        str_from_instance=lambda value: [str(value)],
    )


@_REGISTRY.primitive_rule
def _seeds(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    if not set(get_args(Seeds)) <= set(get_args(info.type)):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SEEDS",
        instance_from_str=lambda words: parse_seeds(words[0]),
        is_instance=lambda value: value is None or isinstance(value, int | tuple),
        str_from_instance=lambda seeds: [",".join(map(str, seeds)) if isinstance(seeds, tuple) else str(seeds)],
    )
