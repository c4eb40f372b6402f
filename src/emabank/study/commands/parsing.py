"""From words to a command, with tyro."""

from dataclasses import make_dataclass
from typing import Annotated, Any, Union, get_args

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
from emabank.study.config import Seeds, parse_seeds

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


_REGISTRY = tyro.constructors.ConstructorRegistry()


@_REGISTRY.primitive_rule
def _seeds(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """How seeds are written on a command line."""
    if not set(get_args(Seeds)) <= set(get_args(info.type)):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="SEEDS",
        instance_from_str=lambda words: parse_seeds(words[0]),
        is_instance=lambda value: value is None or isinstance(value, int | tuple),
        str_from_instance=lambda seeds: [",".join(map(str, seeds)) if isinstance(seeds, tuple) else str(seeds)],
    )


def parse(words: list[str], *, description: str) -> Any:
    """The command that the words after `emabank` mean, with its arguments.

    Ends the process, as argparse does, where help is asked for or the words are refused; `ValueError` where a file of
    settings does not fit.
    """
    if words[0] not in COMMANDS:
        return tyro.cli(_every_command(), prog="emabank", description=description, args=words, config=_MARKERS)
    name, words = words[0], words[1:]
    defaults: dict[str, Any] = {"default": protocol_defaults(words)} if name == "protocol" else {}
    return tyro.cli(COMMANDS[name], prog=f"emabank {name}", args=words, config=_MARKERS, registry=_REGISTRY, **defaults)


def _every_command() -> Any:
    """All commands without their options: enough to name and explain them, and quick."""
    explained = {name: make_dataclass(name, [], namespace={"__doc__": kind.__doc__}) for name, kind in COMMANDS.items()}
    marked = [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in explained.items()]
    union: Any = Union[tuple(marked)]  # noqa: UP007  # it has no other form for kinds that are not known before
    return make_dataclass("EveryCommand", [("command", Annotated[union, tyro.conf.arg(name="")])])
