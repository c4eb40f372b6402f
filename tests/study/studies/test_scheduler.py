"""Running studies: every run once, in order, with manifests on the way; a failure affects only its own pair."""

import os
import shutil
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emabank.study.config import Place, ProtocolConfig, RunConfig
from emabank.study.data.images import Dataset
from emabank.study.executors import Outcome
from emabank.study.run_job import Job, folder_of
from emabank.study.runs.locks import LockedError
from emabank.study.runs.manifest import Manifest
from emabank.study.runs.reader import RunFolder, read_json
from emabank.study.serialize import apply_overrides
from emabank.study.studies import scheduler
from emabank.study.studies.catalogue import STUDIES, settings_of
from tests.study.small_runs import one_thread as one_thread
from tests.study.studies.small_studies import (
    COMMAND,
    DIGITS,
    MAIN,
    MOST,
    OVERHEAD,
    PROTOCOLS,
    WIDE,
    WRONG,
    Counting,
    manifests,
    run_here,
    runs_in,
    small_scale,
)


@pytest.fixture(autouse=True, scope="module")
def small() -> Generator[None]:
    """Small protocols at every scale."""
    with pytest.MonkeyPatch.context() as patch:
        small_scale(patch)
        yield


def run_checked(names: Iterable[str], counting: Counting, *, load: Any = lambda config: DIGITS) -> dict[str, Manifest]:
    """Run studies, and check that the manifests on disk are those returned."""
    written = run_here(names, counting, load=load)
    assert written == {name: manifests(counting.place)[name] for name in written}
    return written


Finished = tuple[dict[str, Manifest], Counting]
"""The manifests and the executor of the fixture `finished_studies`."""


@pytest.fixture
def copied(finished_studies: Finished, tmp_path: Path) -> Place:
    """A copy of the folder of all studies."""
    return Place(runs=Path(shutil.copytree(finished_studies[1].place.runs, tmp_path / "runs")))


def kind(config: RunConfig) -> str:
    return config.title.partition(", rate ")[0]


# All studies ----------------------------------------------------------------------------------------------------------


def test_every_run_is_trained_once(finished_studies: Finished):
    _, counting = finished_studies
    assert len(counting.trained) == len(set(counting.trained))
    assert set(counting.trained) == runs_in(counting.place)
    # Of the main pair: two rates, refit, SWA, step, two bootstraps, posthoc, three more periods (the first is the
    # refit). Of the wide pair: tuning, refit, SWA. The pairs with wrong labels share these and the constant rate.
    assert len(counting.trained) == (2 + 1 + 1 + 1 + 2 + 1 + 3) + 3 + 4
    assert counting.counted == [(0, 18), (4, 18), (11, 18)], "one total, known before the first round"


def test_rounds_are_tuning_then_refits_then_runs_that_start_from_refits(finished_studies: Finished):
    rounds = [sorted(map(kind, configs)) for configs in finished_studies[1].rounds]
    epoch = next(
        config.constant_from for config in finished_studies[1].rounds[2] if config.constant_from and not config.swa
    )
    assert rounds == [
        ["tune"] * 4,
        sorted(
            ["refit"] * 3
            + ["refit, step decay", "tune, bootstrap from ema-1.8%", "tune, with snapshots"]
            + ["tune, bootstrap from ema-0.44% every 5 steps"]
        ),
        sorted(["SWA"] * 3 + [f"refit, averages every {t}" for t in (2, 4, 8)] + [f"rate held from epoch {epoch}"]),
    ]


def test_manifests_are_running_during_every_round(finished_studies: Finished):
    _, counting = finished_studies
    assert len(counting.noted) == 3
    for noted in counting.noted:
        assert set(noted) == set(MOST)
        for study, manifest in noted.items():
            assert (manifest.state, manifest.command, manifest.scale) == ("running", COMMAND, "demo")
            assert [pair.pair for pair in manifest.pairs] == [p for p in PROTOCOLS if p in STUDIES[study].pairs]
            assert {pair.protocol for pair in manifest.pairs} == {None}


def test_final_manifests_are_done_and_list_their_protocols_and_runs(finished_studies: Finished):
    written, counting = finished_studies
    assert {manifest.state for manifest in written.values()} == {"done"}
    assert {manifest.reason for manifest in written.values()} == {""}
    protocols = {(pair.pair, pair.protocol) for manifest in written.values() for pair in manifest.pairs}
    assert len(protocols) == 4, "each pair has one protocol in all studies"
    assert len({protocol for _, protocol in protocols}) == 3
    arms = {study: set(manifest.pairs[0].arms) for study, manifest in written.items() if manifest.pairs[0].arms}
    assert arms == {
        "constant-lr": {"constant"},
        "step-decay": {"step"},
        "bootstrap": {"bootstrap", "bootstrap every 5"},
        "sampling-period": {f"every {period}" for period in (1, 2, 4, 8)},
        "posthoc": {"posthoc"},
    }
    for manifest in written.values():
        for pair in manifest.pairs:
            summary = read_json(counting.place.runs / str(pair.protocol) / "summary.json")
            assert summary["config"]["training"]["width"] == PROTOCOLS[pair.pair].training.width
            for ids in pair.arms.values():
                assert [RunFolder(counting.place.runs / run).config()["seed"] for run in ids] == [0]
                assert set(ids) <= set(counting.trained)
    [pair] = written["sampling-period"].pairs
    summary = read_json(counting.place.runs / str(pair.protocol) / "summary.json")
    assert list(pair.arms["every 1"]) == summary["runs"]["refit"]


def test_overhead_is_measured_only_for_the_study_that_reports_it(finished_studies: Finished):
    written, _ = finished_studies
    assert {study for study, manifest in written.items() if manifest.overheads} == {"sampling-period"}
    assert written["sampling-period"].overheads == (OVERHEAD,), "once, for the only pair of the study"


def test_a_second_run_trains_nothing_measures_no_cost_and_changes_no_file(
    finished_studies: Finished, copied: Place, monkeypatch: pytest.MonkeyPatch
):
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(copied.runs.rglob("*.json*"))}

    monkeypatch.setattr(scheduler, "measure_overhead", lambda config, dataset: {"network": "measured again"})
    before, counting = content(), Counting(copied)
    assert run_checked(MOST, counting) == finished_studies[0]
    assert counting.trained == []
    assert content() == before


# Some studies, and more later -----------------------------------------------------------------------------------------


def test_settings_merge_the_arms_and_stages_of_all_studies():
    studies = [STUDIES[name] for name in ("bootstrap", "sampling-period", "generalization", "step-decay")]
    pairs = {pair.name: pair for pair in settings_of(studies, "demo")}
    assert list(pairs) == [MAIN, WIDE, WRONG]
    assert pairs[MAIN].arms == ("bootstrap", "bootstrap every 5", "every 1", "every 2", "every 4", "every 8", "step")
    assert pairs[MAIN].stages == {"tune", "refit", "swa"}
    assert (pairs[WIDE].arms, pairs[WIDE].stages) == ((), {"tune", "refit", "swa"})
    [alone] = settings_of([STUDIES["bootstrap"]], "demo", lambda config: replace(config, seeds=4))
    assert (alone.arms, alone.stages, alone.config.seeds) == (("bootstrap", "bootstrap every 5"), {"tune"}, 4)


# Failures -------------------------------------------------------------------------------------------------------------


def is_wide(config: RunConfig) -> bool:
    return config.recipe.training.width == 5


def test_a_failed_run_stops_its_pair_and_the_other_pairs_finish(tmp_path: Path):
    place = Place(runs=tmp_path / "runs")
    counting = Counting(place, fails=is_wide)
    written = run_checked(["lr-search", "consistency", "batchnorm"], counting)
    assert {name: manifest.state for name, manifest in written.items()} == {
        "lr-search": "failed",
        "consistency": "failed",
        "batchnorm": "done",
    }
    [config] = filter(is_wide, counting.rounds[0])
    log = folder_of(config, place).path / "log.txt"
    title = f"{config.recipe.title}: tune, rate 0.1, seed 0"
    sentence = f"{WIDE}: 1 of 1 runs failed, the first with exit code 3: {title}; see {log}"
    assert written["lr-search"].reason == written["consistency"].reason == f"{sentence}, then start it again"
    assert not any(map(is_wide, counting.rounds[1])), "no later run of the failed pair is started"
    assert counting.noted[1]["lr-search"].state == "failed" and counting.noted[1]["batchnorm"].state == "running"
    by_pair = {pair.pair: pair.protocol for pair in written["consistency"].pairs}
    assert by_pair[WIDE] is None and by_pair[MAIN] == written["batchnorm"].pairs[0].protocol is not None

    second = Counting(place)
    assert {manifest.state for manifest in run_checked(["lr-search", "consistency"], second).values()} == {"done"}
    assert len(second.trained) == 2, "tuning and refit of the failed pair"


def test_missing_data_fails_its_pairs_before_they_train(copied: Place):
    def load(config: ProtocolConfig) -> Dataset:
        if config.data.noise or config.training.width == 5:
            raise FileNotFoundError("no files")
        return DIGITS

    counting = Counting(copied)
    written = run_checked(["generalization", "batchnorm"], counting, load=load)
    assert (written["generalization"].state, written["batchnorm"].state) == ("failed", "done")
    assert written["generalization"].reason == f"{WIDE}: no files; {WRONG}: no files"
    assert all(config.recipe.data.noise == 0 for configs in counting.rounds for config in configs)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("subset=1000000", "subset"), ("milestones=[0.1, 0.2]", "milestones are 0.1 0.2; give rising shares of the run")],
)
def test_impossible_settings_are_refused_before_training(tmp_path: Path, setting: str, reason: str):
    counting = Counting(Place(runs=tmp_path / "runs"))
    [written] = run_here(["step-decay"], counting, change=lambda config: apply_overrides(config, [setting])).values()
    assert (written.state, counting.rounds) == ("failed", [])
    assert reason in written.reason and "\n" not in written.reason


# Interruptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [0, 2, 4])
def test_an_interrupted_study_stays_running_and_resumes_with_the_missing_runs(
    finished_studies: Finished, tmp_path: Path, last: int
):
    place, names = Place(runs=tmp_path / "runs"), ["lr-search", "step-decay"]
    first = Counting(place, last=last)
    with pytest.raises(KeyboardInterrupt):
        run_checked(names, first)
    assert {name: manifest.state for name, manifest in manifests(place).items()} == dict.fromkeys(names, "running")
    second = Counting(place)
    written = run_checked(names, second)
    assert {manifest.state for manifest in written.values()} == {"done"}
    assert not set(first.trained) & set(second.trained)
    assert len(first.trained) == last and len(first.trained + second.trained) == 2 + 1 + 1 + 1
    assert set(first.trained + second.trained) <= set(finished_studies[1].trained), "as without an interruption"


def test_with_more_seeds_the_old_protocols_stay_in_the_manifest_until_the_new_ones_finish(
    finished_studies: Finished, copied: Place
):
    def more_seeds(config: ProtocolConfig) -> ProtocolConfig:
        return replace(config, seeds=(*config.seed_numbers, 7))

    before = finished_studies[0]["step-decay"]
    with pytest.raises(KeyboardInterrupt):
        run_here(["step-decay"], Counting(copied, last=1), change=more_seeds)
    now = manifests(copied)["step-decay"]
    assert (now.state, now.pairs) == ("running", before.pairs)
    [now] = run_here(["step-decay"], Counting(copied), change=more_seeds).values()
    assert now.state == "done" and now.pairs[0].protocol != before.pairs[0].protocol


def test_a_failed_pair_does_not_take_the_old_protocols_of_the_others_out_of_the_manifest(
    finished_studies: Finished, copied: Place
):
    with pytest.raises(KeyboardInterrupt):
        run_here(
            ["consistency"],
            Counting(copied, fails=lambda config: is_wide(config) and config.seed == 7, last=2),
            change=lambda config: replace(config, seeds=(0, 7)),
        )
    now = manifests(copied)["consistency"]
    assert (now.state, now.pairs) == ("failed", finished_studies[0]["consistency"].pairs)


def test_a_programming_error_is_raised_and_not_recorded_as_a_failed_pair(tmp_path: Path):
    def load(config: ProtocolConfig) -> Dataset:
        raise TypeError("a fault")

    with pytest.raises(TypeError, match="a fault"):
        run_checked(["batchnorm"], Counting(Place(runs=tmp_path / "runs")), load=load)


# Two processes with the same study ------------------------------------------------------------------------------------


class Competing(Counting):
    """During each round, tries to run the same study; during the first, also another study."""

    attempts = 0

    def __call__(self, jobs: Sequence[Job], **counted: int) -> dict[str, Outcome]:
        before = manifests(self.place)
        message = rf"the study lr-search at scale demo is in use by process {os.getpid()} on .*; wait until"
        with pytest.raises(LockedError, match=message):
            run_here(["lr-search"], Counting(self.place))
        assert manifests(self.place) == before
        if not self.attempts:
            run_here(["batchnorm"], Counting(self.place))  # another study is not locked
        self.attempts += 1
        return super().__call__(jobs, **counted)


def test_a_study_in_use_is_refused_with_its_owner_and_changes_no_manifest(tmp_path: Path):
    counting = Competing(Place(runs=tmp_path))
    assert run_checked(["lr-search"], counting)["lr-search"].state == "done"
    assert counting.attempts
    run_here(["lr-search"], Counting(counting.place))  # the lock is released
