"""Configurations to and from plain values and TOML files, and the id of a run. Standard library only.

Unknown keys and values of the wrong type are errors that name the key.
"""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

IF_USED: Mapping[str, bool] = {"if used": True}
"""Metadata of a field that plain values omit at its default. It is for fields added later, which must not change the
ids of runs that do not use them."""

FORMAT = 1  # to be raised when the same configuration would train differently
DIGITS = 16

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path as a text"}


def to_dict(value: Any, *, unused: bool = False) -> Any:
    """Dataclasses as dicts, tuples as lists, paths as strings; numbers, strings, booleans and None unchanged.

    With `unused`, fields marked `IF_USED` are included even at their defaults.
    """
    if is_dataclass(value):
        values = {field: getattr(value, field.name) for field in fields(value)}
        return {
            field.name: to_dict(item, unused=unused)
            for field, item in values.items()
            if unused or item != field.default or "if used" not in field.metadata
        }
    if isinstance(value, tuple | list):
        return [to_dict(item, unused=unused) for item in cast("list[Any]", value)]
    return str(value) if isinstance(value, Path) else value


def from_dict(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Build a dataclass from plain values; an error begins with `where`, as in `keep.toml: epoch is '3'; give ...`."""
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(cast("Any", kind))}
    unknown = [repr(key) for key in values if key not in known]
    if unknown:
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; there are {', '.join(known)}")
    built = {key: _converted(hints[key], value, where, key) for key, value in values.items()}
    optional = [name for name, field in known.items() if (field.default, field.default_factory) != (MISSING, MISSING)]
    missing = [name for name in known if name not in built and name not in optional]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} is missing; give every key that has no default")
    try:
        return kind(**built)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def read_toml(path: Path, kind: type[T]) -> T:
    """Build a dataclass from a TOML file; its tables are the nested dataclasses."""
    try:
        values = _read(path.read_bytes().decode("utf-8-sig"))
    except ValueError as error:  # not TOML, not UTF-8, or a number with thousands of digits
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    return from_dict(kind, values, where=str(path))


def _read(text: str) -> dict[str, Any]:
    if sys.version_info < (3, 11):
        import tomli as tomllib  # pyright: ignore
    else:
        import tomllib
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def apply_overrides(config: T, settings: Sequence[str]) -> T:
    """A copy of a configuration with changes such as `training.epochs=10`, `rates=[0.1, 0.2]` or `network=resnet20`.

    Keys are those of a TOML file; the table may be omitted.
    """
    values = to_dict(config, unused=True)
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign:
            raise ValueError(f"--set: {setting!r} is not a setting; give key=value, such as training.epochs=10")
        table, name = _table_of(values, key.strip())
        try:
            [value] = [None] if text.strip() == "None" else _read(f"value = {text}").values()
        except ValueError:  # a word needs no quotation marks here
            value = text.strip()
        table[name] = value
    return from_dict(type(config), values, where="--set")


def _table_of(values: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The table that holds a key, and the key's own name; `key` may omit the table."""
    tables = {"": values, **{name: table for name, table in values.items() if isinstance(table, dict)}}
    keys = {f"{name}.{field}".removeprefix("."): (name, field) for name, table in tables.items() for field in table}
    matches = [full for full in keys if key in (full, keys[full][1]) and keys[full][1] not in tables]
    if len(matches) != 1:
        known = [full for full in keys if full not in tables]
        close = get_close_matches(key, known, n=3)
        raise ValueError(
            f"--set: there is no setting {key!r}; "
            + (f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}")
        )
    table, name = keys[matches[0]]
    return tables[table], name


def to_toml(config: Any) -> str:
    """A configuration as a TOML file. Settings that are None are omitted, because TOML has no such value."""
    return "\n".join(_toml_lines(to_dict(config), "")) + "\n"


def _toml_lines(table: Mapping[str, Any], name: str) -> list[str]:
    """The values of a table, then its inner tables, because a value after an inner table would belong to that."""
    present = {key: value for key, value in table.items() if value is not None}
    lines = [f"{key} = {_toml(value)}" for key, value in present.items() if not isinstance(value, dict)]
    for key, value in present.items():
        if isinstance(value, dict):
            inner = f"{name}.{key}" if name else key
            lines += ["", f"[{inner}]", *_toml_lines(cast("dict[str, Any]", value), inner)]
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in cast('list[Any]', value))}]"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return f"{{{', '.join(f'{key} = {_toml(item)}' for key, item in items if item is not None)}}}"
    # Numbers, booleans and strings are the same in JSON, except for one control character that only TOML forbids.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _converted(kind: Any, value: Any, where: str, key: str) -> Any:
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        kinds = [argument for argument in arguments if argument is not NoneType]
        # Our unions are `X | None` and `int | tuple[int, ...]`.
        kind = next((kind for kind in kinds if get_origin(kind) is tuple and isinstance(value, list | tuple)), kinds[0])
        return _converted(kind, value, where, key)
    if origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
        raise ValueError(f"{where}: {key} is {value!r}; give one of {', '.join(arguments)}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}: {key} is {value!r}; give a list")
        items = enumerate(cast("list[Any]", value))
        return tuple(_converted(arguments[0], item, where, f"{key}[{i}]") for i, item in items)
    if is_dataclass(kind) or origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: {key} is {value!r}; give a table")
        if origin is dict:
            entries = cast("Mapping[str, Any]", value).items()
            return {name: _converted(arguments[1], item, where, f"{key}.{name}") for name, item in entries}
        return from_dict(cast("type[Any]", kind), cast("Mapping[str, Any]", value), where=f"{where}, {key}")
    return _converted_value(kind, value, where, key)


def _converted_value(kind: Any, value: Any, where: str, key: str) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) is int and abs(value) < 10**300:  # a float can hold no more
        return float(value)
    if type(value) is kind:
        return value
    raise ValueError(f"{where}: {key} is {value!r}; give {_WORDS[kind]}")


# The id of a run -----------------------------------------------------------------------------------------------------


def run_id(config: Mapping[str, Any]) -> str:
    """The id of the run that a complete configuration describes: 16 hexadecimal digits.

    It ignores the order of keys, whether a sequence is a list or a tuple, and whether a number is 1 or 1.0, because
    training does too. It does distinguish True from 1, and a missing key from one that is None.
    """
    text = json.dumps(_canonical(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(f"emabank run {FORMAT}\n{text}".encode()).hexdigest()[:DIGITS]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in cast("list[Any]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
