"""The experiments: formulas against independent computations, and runs that are killed and resumed."""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import decayed_model, heat_equation, validation_images
from experiments.decayed_model import DECAYS, Corpus, Run, Settings, run_seed
from experiments.record import Record, parse_seeds
from tests.support.oracle import assert_equal


@dataclass(frozen=True)
class Tiny(Settings):
    steps: int = 100
    warmup: int = 5
    batch: int = 2
    context: int = 8
    width: int = 8
    layers: int = 1
    validation: int = 4


TINY = Tiny()


@pytest.fixture
def corpus() -> Corpus:
    train, validation = torch.randint(256, (2, 500), generator=torch.Generator().manual_seed(0))
    return Corpus(train, validation, "of random characters")


def run_script(module: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows after the command."""
    monkeypatch.setattr(sys, "argv", ["experiment", "--out", str(folder), *arguments])
    module.main()
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


# Formulas


def test_the_solution_is_the_mean_over_the_noise() -> None:
    """The Feynman-Kac formula, from which the network learns."""
    points = torch.rand(3, heat_equation.DIMENSIONS, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(20_000, heat_equation.DIMENSIONS, generator=torch.Generator().manual_seed(1))
    samples = torch.stack([heat_equation.initial(point + math.sqrt(2) * noise) for point in points])
    torch.testing.assert_close(samples.mean(1), heat_equation.solution(points), rtol=0.02, atol=0.0)
    assert heat_equation.relative_error(1.01 * heat_equation.solution(points), points) == pytest.approx(0.01, rel=1e-4)


def test_a_branch_at_the_constant_rate_equals_the_trunk(corpus: Corpus, tmp_path: Path) -> None:
    run = Run(TINY, 1, corpus, tmp_path)
    run.train_to(18)
    branch = run.branch(lambda done: 1.0).state_dict()
    decayed = run.branch(DECAYS["linear"]).state_dict()
    run.train_to(18 + TINY.window)
    assert_equal(branch, run.model.state_dict())
    assert not torch.equal(decayed["head.weight"], branch["head.weight"])


def test_the_merge_of_a_linear_decay_is_the_mean_of_the_trunk(corpus: Corpus, tmp_path: Path) -> None:
    """With a checkpoint per step it is the mean over every step of the window, here computed in memory."""
    run = Run(TINY, 1, corpus, tmp_path)
    run.train_to(18)
    states: list[dict[str, Tensor]] = []
    for step in range(19, 29):
        run.train_to(step)
        states.append({key: value.double() for key, value in run.model.state_dict().items()})
    predicted = run.predictions()["merge-linear"]
    mean = {key: torch.stack([state[key] for state in states]).mean(0).float() for key in states[0]}
    run.model.load_state_dict(mean)
    assert predicted == pytest.approx(run.validate(run.model), abs=1e-5)


# Commands


def test_a_killed_run_gives_the_same_rows(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Record(tmp_path / "whole", {})
    run_seed(TINY, 1, corpus, whole)
    rows = [without_time(row) for row in whole.rows()]
    assert [row["fork"] for row in rows] == [30, 45, 60, 75, 90]

    killed, step_once = Record(tmp_path / "killed", {}), Run.train_step
    for steps in (10, 35, 55, 70):  # before the first fork, in a branch, in its window, and in a later window

        def stop_after(run: Run, *arguments: Any, steps_left: list[int] = [steps]) -> None:  # noqa: B006
            steps_left[0] -= 1
            if steps_left[0] < 0:
                raise KeyboardInterrupt
            step_once(run, *arguments)

        monkeypatch.setattr(Run, "train_step", stop_after)
        with pytest.raises(KeyboardInterrupt):
            run_seed(TINY, 1, corpus, killed)
    monkeypatch.setattr(Run, "train_step", step_once)
    run_seed(TINY, 1, corpus, killed)
    assert [without_time(row) for row in killed.rows()] == rows
    assert not list(tmp_path.rglob("unfinished")), "no weights remain"


def test_decayed_model_command(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decayed_model, "standard_library", lambda: corpus)
    monkeypatch.setattr(decayed_model, "Settings", Tiny)
    rows = run_script(decayed_model, monkeypatch, tmp_path, "--seeds", "1,2")
    assert len(rows) == 10
    live = [abs(row["at_end"]["live"] - row["branch"]["linear"]) for row in rows]
    sizes = decayed_model.mean_sizes(rows, "at_end", "live", "linear")
    assert sizes == pytest.approx([sum(live[:5]) / 5, sum(live[5:]) / 5])
    assert (tmp_path / "predicted.svg").exists() and (tmp_path / "summary.md").exists()
    assert run_script(decayed_model, monkeypatch, tmp_path, "--seeds", "1,2") == rows


def test_heat_equation_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_script(heat_equation, monkeypatch, tmp_path, "--seeds", "1", "--steps", "100")
    rows = run_script(heat_equation, monkeypatch, tmp_path, "--seeds", "1-2", "--steps", "100")
    assert [row["seed"] for row in rows] == [1, 2] and rows[0] == first[0]
    again = run_script(heat_equation, monkeypatch, tmp_path / "again", "--seeds", "2", "--steps", "100")
    assert again[0]["errors"] == rows[1]["errors"]
    assert (tmp_path / "errors.svg").exists() and (tmp_path / "summary.md").exists()
    with pytest.raises(ValueError, match="steps 100, now 200"):
        run_script(heat_equation, monkeypatch, tmp_path, "--seeds", "1", "--steps", "200")


def test_the_corpus_is_split_by_file() -> None:
    corpus = decayed_model.standard_library()
    train, validation = (bytes(part.tolist()) for part in (corpus.train, corpus.validation))
    source = Path(argparse.__file__).read_bytes()
    assert (source in train) != (source in validation)
    assert len(train) > 4 * len(validation) > 500_000


def test_seeds_are_parsed() -> None:
    assert parse_seeds("10-12, 900,11") == [10, 11, 12, 900]


@pytest.mark.parametrize("text", ["", "a", "5-3", "1,,2", "-1"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be numbers and ranges"):
        parse_seeds(text)


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "core_seconds"}


def test_accuracy_lost_by_choosing_with_fewer_images_equals_a_direct_search() -> None:
    generator = torch.Generator().manual_seed(0)
    share = torch.linspace(0.4, 0.7, 24).view(4, 6, 1)
    right, tested = (torch.rand(4, 6, validation_images.PART, generator=generator) < share for _ in range(2))
    values = validation_images.measure(right, tested)
    assert values["images"]["5000"] == {"changed": 0.0, "lost": 0.0, "lost_95": 0.0}
    exact, lost = tested.double().mean(2).flatten(), 0.0
    for draw in range(validation_images.DRAWS):
        seen = torch.randperm(validation_images.PART, generator=torch.Generator().manual_seed(draw))[:50]
        counts = right[:, :, seen].sum(2).flatten().tolist()
        lost += float(exact[23] - exact[counts.index(max(counts))]) / validation_images.DRAWS  # the first of equals
    assert values["images"]["50"]["lost"] == pytest.approx(lost)
    assert values["levers"]["live weights alone"] == pytest.approx(float(exact[18]))  # the best of the last epoch
