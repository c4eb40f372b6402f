"""The command `decay`: every form of a decay is the same decay, and it is what a bank really does."""

import math
from dataclasses import replace
from io import StringIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from emabank import EMA, EMABank
from emabank.study.decay import Meaning, meanings, show_decay
from emabank.study.own_arguments import DecayArguments
from tests.study.parsing import parsed, refused

PAPER = (0.968, 0.984, 0.992, 0.996, 0.998)


def one(**given: float) -> Meaning:
    every = int(given.pop("every", 16))
    epoch = given.pop("steps_per_epoch", None)
    ((name, value),) = given.items()
    (found,) = meanings(DecayArguments(**{name: (value,)}, every=every, steps_per_epoch=epoch))  # type: ignore[arg-type]
    return found


def shown(*words: str) -> str:
    console = Console(width=100, record=True, file=StringIO())
    show_decay(parsed("decay", *words), console)
    return console.export_text()


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name}  "))
    return line.strip().removeprefix(name).split()


def test_the_papers_table():
    found = meanings(DecayArguments(per_update=PAPER))
    assert [meaning.decay for meaning in found] == pytest.approx([0.998, 0.999, 0.9995, 0.99975, 0.999875], abs=4e-5)
    assert [meaning.window for meaning in found] == pytest.approx([500, 1000, 2000, 4000, 8000], rel=0.02)
    assert found[-1].warmup == 4490 and found[-1].half_life == pytest.approx(5539.6, abs=0.1)


@given(st.floats(0.01, 0.99999), st.integers(1, 64))
def test_every_form_is_the_same_decay(decay: float, every: int):
    first = one(decay=decay, every=every)
    for other in (
        one(per_update=decay**every, every=every),
        one(half_life=first.half_life, every=every),
        one(window=first.window, every=every),
        one(half_life_epochs=first.half_life / 391, steps_per_epoch=391, every=every),
        one(window_epochs=first.window / 391, steps_per_epoch=391, every=every),
    ):
        assert other.decay == pytest.approx(decay, rel=1e-9)


@pytest.mark.parametrize("given", [{"decay": 0.97}, {"per_update": 0.9}, {"half_life": 20.0}, {"window": 64.0}])
def test_it_is_what_a_bank_does(given: dict[str, float]):
    """A step of the live weights from 0 to 1: what is left of the past, against the half-life."""
    found = one(**given, every=4)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    rule = EMA(float(found.rule)) if found.rule[0] == "0" else eval(found.rule, {"EMA": EMA})
    bank = EMABank(model, {"it": replace(rule, warmup=None)}, every=4, dtype=torch.float64)
    torch.nn.init.ones_(model.weight)
    for _ in range(40):
        bank.update()
    left = 1 - bank.weights("it")["weight"].item()
    assert left == pytest.approx(0.5 ** (40 / found.half_life), rel=1e-6) == pytest.approx(found.decay**40, rel=1e-6)


def test_the_warm_up_ends_where_a_bank_ends_it():
    found = one(decay=0.99)
    decays = [EMA(0.99).decay_at(steps=step, elapsed=1, samples=0, every=1) for step in range(1, 200)]
    assert decays.index(0.99) == found.warmup


def test_what_is_shown():
    text = shown("--per-update", "0.998", "--every", "16", "--steps-per-epoch", "391")
    assert row(text, "decay per update, every 16 steps") == ["0.998"] and row(text, "decay per step") == ["0.999875"]
    assert row(text, "half-life, in steps") == ["5,540"] and row(text, "window, in steps") == ["7,992"]
    assert row(text, "warm-up, in steps") == ["4,490"]
    assert [line.split()[-1] for line in text.splitlines() if "in epochs" in line] == ["14.2", "20.4", "11.5"]
    assert "EMABank(model, [EMA(per_update=0.998)], every=16)" in text


def test_several_at_once_and_no_epochs_where_they_are_unknown():
    text = shown("--per-update", *map(str, PAPER))
    assert row(text, "window, in steps") == ["492", "992", "1,992", "3,992", "7,992"]
    assert "epochs" not in text
    assert row(text, "decay per step") == ["0.99797", "0.99899", "0.999498", "0.99975", "0.999875"]


@pytest.mark.parametrize("words", ["0.998", "--half-life 693", "--per-update 0.998", "--window 500", "1", "0"])
def test_the_line_of_python_runs(words: str):
    line = next(line for line in shown(*words.split()).splitlines() if line.startswith("In Python: "))
    bank = eval(line.removeprefix("In Python: "), {"EMABank": EMABank, "EMA": EMA, "model": torch.nn.Linear(1, 1)})
    assert len(bank.names) == 1


def test_the_ends():
    never, at_once = one(decay=1.0), one(decay=0.0)
    assert (never.half_life, never.window, never.warmup) == (math.inf, math.inf, math.inf) and never.decay == 1
    assert (at_once.half_life, at_once.window, at_once.decay, at_once.warmup) == (0, 1, 0, 0)
    assert row(shown("1"), "half-life, in steps") == ["never", "ends"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "nothing is given; give one of decay, per_update, half_life"),
        ("0.9 --half-life 3", "decay and half_life is given; give one of"),
        ("0.9 --every 0", "every is 0; give 1 or more"),
        ("0.9 --steps-per-epoch 0", "steps_per_epoch is 0.0; give a number above 0"),
        ("--half-life-epochs 2", "half_life_epochs needs to know how long an epoch is; give steps_per_epoch"),
        ("1.5", "decay is 1.5; a decay must be from 0 to 1"),
        ("--per-update nan", "per_update is nan; a decay must be"),
        ("--half-life 0", "a half-life of 0 steps: give a number above 0"),
        ("--window 0.5", "a window of 0.5 steps: give 1 step or more"),
    ],
)
def test_what_makes_no_decay_is_refused(words: str, said: str):
    assert said in refused("decay", *words.split())
