"""Parse the command line with tyro."""

import contextlib
import inspect
import io
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from emabank.study.commands import studies
from emabank.study.commands.average import AverageArguments
from emabank.study.commands.bench import BenchArguments
from emabank.study.commands.decay import DecayArguments
from emabank.study.config import Seeds, did_you_mean, parse_seeds

COMMANDS: dict[str, type[Any]] = {
    "demo": studies.DemoArguments,
    "list": studies.ListArguments,
    "run": studies.RunArguments,
    "status": studies.StatusArguments,
    "report": studies.ReportArguments,
    "claims": studies.ClaimsArguments,
    "advise": studies.AdviseArguments,
    "protocol": studies.ProtocolArguments,
    "data": studies.DataArguments,
    "average": AverageArguments,
    "decay": DecayArguments,
    "bench": BenchArguments,
}
_MARKERS = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
_REGISTRY = tyro.constructors.ConstructorRegistry()


def parse(words: list[str], *, description: str) -> Any:
    """The command with its arguments, from the command line after `emabank`.

    Like argparse, ends the process after help and on unknown options. Raises `ValueError` for values that a command
    refuses.
    """
    name, *rest = words
    if name in ("-h", "--help"):
        print(_help(description))
        sys.exit(0)
    if name not in COMMANDS:
        close = did_you_mean(name, COMMANDS)
        raise ValueError(f"there is no command {name!r}{close}; `emabank --help` lists the commands")
    defaults: dict[str, Any] = {"default": studies.protocol_defaults(rest)} if name == "protocol" else {}
    _show_useful_defaults(COMMANDS[name])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                COMMANDS[name],
                prog=f"emabank {name}",
                description=_wrapped(inspect.getdoc(COMMANDS[name]) or ""),
                args=rest,
                config=_MARKERS,
                registry=_REGISTRY,
                **defaults,
            )
    except SystemExit as stopped:
        refused = _cause(stopped)
        if isinstance(refused, _Unreadable):
            raise ValueError(f"{_option_of(refused.text, rest)} must be {refused}; got {refused.text!r}") from None
        if refused is not None:
            raise refused from None
        print(said.getvalue(), end="", file=sys.stderr)
        raise


def _cause(stopped: SystemExit) -> ValueError | None:
    """The `ValueError` behind tyro's exit, if any. tyro shows it in a box, under the name of an internal class."""
    error: BaseException | None = stopped
    while error is not None and not isinstance(error, ValueError):
        error = error.__context__
    return error


# Help ----------------------------------------------------------------------------------------------------------------


def _help(description: str) -> str:
    """One line per command: the first line of its docstring."""
    lines = [f"  {name:9} {(kind.__doc__ or '').splitlines()[0]}" for name, kind in COMMANDS.items()]
    return "\n".join(["usage: emabank COMMAND [OPTIONS]", "", description, "", *lines])


def _wrapped(text: str) -> str:
    """A docstring wrapped for the terminal. Later paragraphs are indented, or tyro would join their lines."""
    first, *parts = text.split("\n\n")
    columns = shutil.get_terminal_size().columns
    filled = [textwrap.fill(part, columns, initial_indent="  ", subsequent_indent="  ") for part in parts]
    return "\n".join([first, *filled])


def _show_useful_defaults(kind: type[Any]) -> None:
    """Hide "(default: None)" and the like in tyro's help: such an option's text says what happens without it."""
    hint = tyro.conf.arg(help_behavior_hint=_default_hint)
    for owner in kind.__mro__:
        for name, annotation in vars(owner).get("__annotations__", {}).items():
            if "Annotated" not in str(annotation):
                owner.__annotations__[name] = Annotated[annotation, hint]
    for field in fields(kind):
        inner = get_type_hints(kind)[field.name]
        if is_dataclass(inner) and isinstance(inner, type):
            _show_useful_defaults(inner)


def _default_hint(default: str) -> str:
    return "" if default in ("", "''", "None", "False", "True") else f"(default: {default})"


# Values on the command line ------------------------------------------------------------------------------------------


class _Unreadable(ValueError):
    """A word that an option cannot take; the message says what it must be."""

    def __init__(self, must_be: str, text: str) -> None:
        super().__init__(must_be)
        self.text = text


def _option_of(text: str, words: Sequence[str]) -> str:
    """The option that takes this text as its value."""
    option = "the argument"
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            option = name
        if text in (word, value if equals else word):
            break
    return option


def _number(kind: type[int] | type[float], must_be: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise _Unreadable(must_be, text) from None

    return read


def _choice(choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            close = did_you_mean(text, choices)
            raise _Unreadable(f"one of {', '.join(choices)}{close}", text)
        return text

    return read


_READERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("INT", _number(int, "a whole number, such as 3")),
    float: ("FLOAT", _number(float, "a number, such as 0.5")),
    str: ("TEXT", str),
    Path: ("PATH", Path),
}


@_REGISTRY.primitive_rule
def _value(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Parses a number, text, path or choice, several of them, or None. tyro's own errors would name classes."""
    kinds = {info.type} if get_origin(info.type) in (tuple, Literal) else set(get_args(info.type)) or {info.type}
    kind, *others = kinds - {NoneType} or {None}
    several = get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
    kind = get_args(kind)[0] if several else kind
    if others:
        return None
    if get_origin(kind) is Literal:
        metavar, read = f"{{{','.join(get_args(kind))}}}", _choice(get_args(kind))
    elif kind in _READERS:
        metavar, read = _READERS[kind]
    else:
        return None
    if several:
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar=f"[{metavar} ...]",
            instance_from_str=lambda texts: tuple(map(read, texts)),
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda values: list(map(str, values)),
        )
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: None if texts == ["None"] and NoneType in kinds else read(texts[0]),
        is_instance=lambda value: value is not None or NoneType in kinds,
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
