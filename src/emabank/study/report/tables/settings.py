"""Which settings a table shows, in which order and under which label, and whether the paper's numbers compare.

May import the evidence alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from emabank.study.report.evidence import Evidence, Setting, compares
from emabank.study.report.pairs import PAIRS

FOR_ORIENTATION = (
    "The paper's numbers are of what this stands for: another data set and network, or more images. They give "
    "orientation and are nothing to be reached."
)


def standing_for(evidence: Evidence, scale: str, pairs: Iterable[str] = tuple(PAIRS)) -> list[Setting]:
    """The settings of a scale that stand for these pairs, in the order of the pairs; all, where several do for one.

    >>> standing_for(Evidence(), "demo")
    []
    """
    return [setting for pair in pairs for setting in evidence.of(pair, scale=scale)]


def label(setting: Setting) -> str:
    """What was trained, and what it stands for where that is something else.

    >>> made = Setting(scale="demo", pair="cifar10-resnet18", title="digits, ResNet-8", dataset="digits",
    ...                network="resnet8", protocol="", averages=(), has_batchnorm=True, choices=[], tables=[], arms={})
    >>> label(made)
    'digits, ResNet-8 (for CIFAR-10, ResNet-18)'
    """
    paper = PAIRS.get(setting.pair, setting.pair)
    return setting.title if compares(setting) or not paper else f"{setting.title} (for {paper})"


def labels(settings: Sequence[Setting]) -> list[str]:
    """A label for each, with the protocol's folder where two would have the same.

    >>> labels([])
    []
    """
    found = [label(setting) for setting in settings]
    return [
        f"{each}, {setting.protocol}" if found.count(each) > 1 else each
        for each, setting in zip(found, settings, strict=True)
    ]


def titled(what: str, settings: Sequence[Setting]) -> tuple[str, list[str]]:
    """The title of a sheet and what each setting's rows begin with: with one setting alone, the title names it.

    >>> titled("Accuracy", [])
    ('Accuracy', [])
    """
    found = labels(settings)
    return (f"{what}: {found[0]}", [""]) if len(found) == 1 else (what, [f"{each}: " for each in found])


def orientation(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The note that the paper's numbers are of something else, where they are.

    >>> orientation([])
    ()
    """
    return () if all(map(compares, settings)) else (FOR_ORIENTATION,)


def part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a protocol's configuration, empty where there is none.

    >>> part({"data": {"subset": 100}, "seeds": 3}, "data"), part({}, "data")
    ({'subset': 100}, {})
    """
    found: Any = config.get(name)
    return found if isinstance(found, Mapping) else {}
