"""The set-up: what was really run, by setting, beside the paper's table of hyper-parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emabank.study.report.evidence import Evidence, all_chosen_on
from emabank.study.report.pairs import Scale
from emabank.study.report.paper.numbers import Printed
from emabank.study.report.sheet import Cell, Sheet
from emabank.study.report.tables import beside
from emabank.study.report.tables.settings import labels, part, standing_for

ITEM = "Table 22"

Config = Mapping[str, Any]


def hyperparameters(evidence: Evidence, scale: Scale) -> list[Sheet]:
    """A column for each setting, and the paper's; rows that no configuration says anything about are left out.

    >>> hyperparameters(Evidence(), "demo")
    []
    """
    settings = [setting for setting in standing_for(evidence, scale) if setting.config]
    rows: list[tuple[str, list[Cell]]] = []
    for title, (read, paper) in _ROWS.items():
        texts = [read(setting.config) for setting in settings]
        if any(texts):
            rows.append((title, [*(Cell(text=text or "–") for text in texts), Cell(text=_printed(paper) or "–")]))
    if not rows:
        return []
    return [
        Sheet(
            name="setup/hyperparameters", title="Hyper-parameters of what was run, beside the paper's",
            columns=["", *labels(settings), "paper"], rows=rows, study="setup", scale=scale, item=ITEM,
            caption="A percentage among the averages is the half-life as a share of the run."
            f"{all_chosen_on(settings)}",
        )
    ]  # fmt: skip


def _of(section: str, name: str) -> Callable[[Config], str]:
    return lambda config: _text(part(config, section).get(name))


def _text(value: Any) -> str:
    if value is None or value == "" or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        found: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return ", ".join(_text(each) for each in found)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _optimizer(config: Config) -> str:
    return "SGD, Nesterov" if part(config, "training") else ""


def _data(config: Config) -> str:
    data = part(config, "data")
    found = [_text(data.get("dataset")), _text(data.get("labels")) and f"{data['labels']} labels"]
    found += [f"{100 * data['noise']:g}% wrong labels" if data.get("noise") else ""]
    found += [f"{data['subset']} images" if data.get("subset") else ""]
    return ", ".join(each for each in found if each)


def _network(config: Config) -> str:
    training = part(config, "training")
    width = f", width {training['width']}" if training.get("width") else ""
    return f"{training['network']}{width}" if training.get("network") else ""


def _schedule(config: Config) -> str:
    training = part(config, "training")
    warmup = training.get("warmup_epochs")
    said = f", warm-up {warmup:g} epochs" if isinstance(warmup, int | float) else ""
    return f"{training['schedule']}{said}" if training.get("schedule") else ""


def _averages(config: Config) -> str:
    found = part(config, "averages")
    shares: Any = found.get("half_lives") or ()
    return _text(found.get("decays")) or ", ".join(f"{share:g}%" for share in shares)


def _rates(config: Config) -> str:
    return _text(config.get("rates"))


def _seeds(config: Config) -> str:
    return _text(config.get("seeds"))


def _printed(wanted: Sequence[tuple[str, str]]) -> str:
    """What the paper prints about it: an item's metric, with the titles of columns where there are several values."""
    for item, metric in wanted:
        found = [value for values in beside.rows(item).values() for value in values if value.metric == metric]
        if found:
            return "; ".join(_titled(value) for value in found)
        text = beside.text(item, metric=metric)
        if text:
            return text
    return ""


def _titled(value: Printed) -> str:
    return value.text if value.column == "Value" else f"{value.column}: {value.text}"


_ROWS: dict[str, tuple[Callable[[Config], str], Sequence[tuple[str, str]]]] = {
    "data": (_data, ()),
    "network": (_network, ()),
    "optimizer": (_optimizer, [(ITEM, "optimizer")]),
    "momentum": (_of("training", "momentum"), [(ITEM, "momentum")]),
    "learning rates tried": (_rates, [(ITEM, "rate")]),
    "schedule": (_schedule, ()),
    "weight decay": (_of("training", "weight_decay"), [(ITEM, "weight_decay")]),
    "batch size": (_of("training", "batch"), [(ITEM, "batch")]),
    "epochs": (_of("training", "epochs"), [(ITEM, "budget")]),
    "averages": (_averages, [(ITEM, "decays")]),
    "sampling period, steps": (_of("averages", "every"), [(ITEM, "period")]),
    "warm-up of the decay": (_of("averages", "decay_warmup"), [("Section 4.1", "decay_warmup")]),
    "crop, pixels": (_of("data", "crop"), ()),
    "mirrored": (_of("data", "flip"), ()),
    "seeds": (_seeds, [("Section 4.1", "runs")]),
}
"""What is shown, how it is read from a configuration, and where the paper says it: items and metrics."""
