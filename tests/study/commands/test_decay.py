"""The command `decay`: all forms of a decay agree with each other and with a bank."""

import math
from io import StringIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from emabank import EMA, EMABank
from emabank.rules import for_batch_size
from emabank.study.commands.decay import DecayArguments, decays_of, show_decay
from tests.study.commands.parsing import error_of, parsed

PAPER = (0.968, 0.984, 0.992, 0.996, 0.998)


def convert(every: int = 16, steps_per_epoch: float | None = None, **form: float) -> tuple[str, float]:
    """The rule and the decay per step of a decay in any form."""
    ((name, value),) = form.items()
    (decay,) = decays_of(DecayArguments(**{name: (value,)}, every=every, steps_per_epoch=steps_per_epoch))  # type: ignore[arg-type]
    return decay


def output_of(*words: str) -> str:
    console = Console(width=100, record=True, file=StringIO())
    show_decay(parsed("decay", *words), console)
    return console.export_text()


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name}  "))
    return line.strip().removeprefix(name).split()


@given(st.floats(0.01, 0.99999), st.integers(1, 64))
def test_all_forms_of_a_decay_agree(decay: float, every: int):
    steps, window = -math.log(2) / math.log(decay), 1 / (1 - decay)
    for _, other in (
        convert(decay=decay, every=every),
        convert(per_update=decay**every, every=every),
        convert(half_life=steps, every=every),
        convert(window=window, every=every),
        convert(half_life_epochs=steps / 391, steps_per_epoch=391, every=every),
        convert(window_epochs=window / 391, steps_per_epoch=391, every=every),
    ):
        assert other == pytest.approx(decay, rel=1e-9)


def test_warm_up_ends_at_the_step_where_the_rule_ends_it():
    decays = [EMA(0.99).decay_at(steps=step, elapsed=1, samples=0, every=1) for step in range(1, 200)]
    assert row(output_of("0.99"), "warm-up, in steps") == [str(decays.index(0.99))]


def test_table_of_one_decay():
    text = output_of("--per-update", "0.998", "--every", "16", "--steps-per-epoch", "391")
    assert row(text, "decay per update, every 16 steps") == ["0.998"] and row(text, "decay per step") == ["0.999875"]
    assert row(text, "half-life, in steps") == ["5,540"] and row(text, "window, in steps") == ["7,992"]
    assert row(text, "warm-up, in steps") == ["4,490"]
    assert [line.split()[-1] for line in text.splitlines() if "in epochs" in line] == ["14.2", "20.4", "11.5"]
    assert "EMABank(model, [EMA(per_update=0.998)], every=16)" in text


def test_another_batch_size_keeps_the_half_life_in_samples():
    text = output_of("0.9999", "--batch", "256", "--to-batch", "4096")
    assert row(text, "decay per step") == ["0.9984"]
    assert row(text, "half-life, in steps") == ["433"]  # 6,931 steps of 256
    assert for_batch_size(for_batch_size(0.99, 32, 512), 512, 32) == pytest.approx(0.99)
    text = output_of("--half-life-epochs", "2", "--steps-per-epoch", "195", "--batch", "256", "--to-batch", "1024")
    assert row(text, "half-life, in steps") == ["97.5"]
    assert next(line for line in text.splitlines() if "in epochs" in line).split()[-1] == "2.0"


@pytest.mark.parametrize("words", ["0.998", "--half-life 693", "--per-update 0.998", "--window 500", "1", "0"])
def test_the_printed_python_runs(words: str):
    line = next(line for line in output_of(*words.split()).splitlines() if line.startswith("In Python: "))
    bank = eval(line.removeprefix("In Python: "), {"EMABank": EMABank, "EMA": EMA, "model": torch.nn.Linear(1, 1)})
    assert len(bank.names) == 1


def test_decays_of_0_and_1():
    rows = ("half-life, in steps", "window, in steps", "warm-up, in steps")
    assert [row(output_of("1"), name) for name in rows] == [["never", "ends"]] * 3
    assert [row(output_of("0"), name) for name in rows] == [["0"], ["1"], ["0"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give decays, such as 0.999, or one of --per-update, --half-life, "),
        ("0.9 --half-life 3", "got a decay and --half-life"),
        ("0.9 --every 0", "every is 0; give 1 or more"),
        ("0.9 --steps-per-epoch 0", "--steps-per-epoch must be above 0, such as 391; got 0"),
        ("--half-life-epochs 2", "--half-life-epochs needs --steps-per-epoch"),
        ("1.5", "a decay must be from 0 to 1, such as 0.999; got 1.5"),
        ("--per-update nan", "--per-update must be from 0 to 1, such as 0.999; got nan"),
        ("--half-life 0", "a half-life must be above 0 steps; got 0"),
        ("0.9 --batch 256", "--batch needs --to-batch"),
        ("0.9 --batch 256 --to-batch 0", "to_batch is 0; give 1 or more"),
        ("--window 0.5", "a window must be 1 step or more; got 0.5"),
    ],
)
def test_impossible_decays_are_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert message in error_of(capsys, "decay", *words.split())
