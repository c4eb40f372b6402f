"""Studies carried out: every run once, in order, noted on the way; what fails is set aside, the rest goes on."""

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
from emabank.study.studies import scheduler
from emabank.study.studies.catalogue import STUDIES, settings_of
from tests.study.small_runs import one_thread as one_thread
from tests.study.studies.small_studies import (
    CONSTANT,
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
def small() -> Generator[list[str]]:
    """Small stand-ins at every scale; the cost of averages is not measured, but noted by whom it was asked for."""
    asked: list[str] = []

    def measure(config: ProtocolConfig, dataset: Dataset) -> dict[str, Any]:
        asked.append(title_of_pair(config))
        return OVERHEAD

    with pytest.MonkeyPatch.context() as patch:
        small_scale(patch)
        patch.setattr(scheduler, "measure_overhead", measure)
        yield asked


def title_of_pair(config: ProtocolConfig) -> str:
    return next(pair for pair, known in PROTOCOLS.items() if known.completed() == config)


def carried_out(names: Iterable[str], counting: Counting, *, load: Any = lambda config: DIGITS) -> dict[str, Manifest]:
    written = run_here(names, counting, load=load)
    assert written == {name: as_written(manifests(counting.place)[name]) for name in written}
    return written


def as_written(manifest: Manifest) -> Manifest:
    """Ids are tuples before they are written."""
    pairs = tuple(replace(pair, arms={arm: tuple(ids) for arm, ids in pair.arms.items()}) for pair in manifest.pairs)
    return replace(manifest, pairs=pairs)


Finished = tuple[dict[str, Manifest], Counting]
"""What the fixture `finished_studies` gives: what was written, and who counted."""


@pytest.fixture
def copied(finished_studies: Finished, tmp_path: Path) -> Place:
    """The folder of all studies once more, to be damaged."""
    return Place(runs=Path(shutil.copytree(finished_studies[1].place.runs, tmp_path / "runs")))


def kind(config: RunConfig) -> str:
    return config.title.partition(", rate ")[0]


# Everything once, in order -------------------------------------------------------------------------------------------


def test_every_run_that_any_study_needs_is_trained_once(finished_studies: Finished):
    _, counting = finished_studies
    assert len(counting.trained) == len(set(counting.trained))
    assert set(counting.trained) == runs_in(counting.place)
    # Of the main pair: two rates, refit, SWA, step, two bootstraps, posthoc, three more periods (the first is the
    # refit); of the wide one: tuning, refit, SWA; with wrong labels, for two pairs: these and the held rate.
    assert len(counting.trained) == (2 + 1 + 1 + 1 + 2 + 1 + 3) + 3 + 4
    assert counting.counted == [(0, 18), (4, 18), (11, 18)], "one total, known before the first round"


def test_first_all_tuning_then_what_follows_from_it_then_what_goes_on_from_refits(
    finished_studies: Finished,
):
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


def test_it_is_noted_before_the_first_round_and_after_each_that_studies_run(
    finished_studies: Finished,
):
    _, counting = finished_studies
    assert len(counting.noted) == 3
    for noted in counting.noted:
        assert set(noted) == set(MOST)
        for study, manifest in noted.items():
            assert (manifest.state, manifest.command, manifest.scale) == ("running", "emabank run x", "demo")
            assert [pair.pair for pair in manifest.pairs] == [p for p in PROTOCOLS if p in STUDIES[study].pairs]
            assert {pair.protocol for pair in manifest.pairs} == {None}


def test_at_the_end_each_study_is_done_and_says_which_protocols_and_runs_are_its_own(
    finished_studies: Finished,
):
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
    [ran] = written["sampling-period"].pairs
    assert (
        list(ran.arms["every 1"])
        == read_json(counting.place.runs / str(ran.protocol) / "summary.json")["runs"]["refit"]
    )


def test_what_averages_cost_is_measured_for_the_study_that_asks_alone(
    finished_studies: Finished, small: list[str], copied: Place
):
    written, _ = finished_studies
    assert {study for study, manifest in written.items() if manifest.overheads} == {"sampling-period"}
    assert written["sampling-period"].overheads == (OVERHEAD,)
    asked = len(small)
    assert small[:asked] == [MAIN] * asked
    carried_out(["dynamics", "bootstrap"], Counting(copied))
    assert len(small) == asked
    carried_out(["sampling-period"], Counting(copied))
    assert len(small) == asked + 1


def test_carried_out_again_nothing_is_trained_and_all_is_as_before(finished_studies: Finished, copied: Place):
    def content() -> dict[str, bytes]:
        names = ("summary.json", "rows.jsonl", "done.json")
        return {str(path): path.read_bytes() for name in names for path in sorted(copied.runs.rglob(name))}

    before, counting = content(), Counting(copied)
    assert carried_out(MOST, counting) == finished_studies[0]
    assert counting.trained == []
    assert content() == before


# Some of it, and more later ------------------------------------------------------------------------------------------


def summary_of(place: Place, manifest: Manifest, pair: str) -> dict[str, Any]:
    [protocol] = [str(each.protocol) for each in manifest.pairs if each.pair == pair]
    return read_json(place.runs / protocol / "summary.json")


def test_calibration_alone_trains_no_refits_and_a_later_study_adds_them_to_the_same_summary(tmp_path: Path):
    place = Place(runs=tmp_path / "runs")
    first = Counting(place)
    calibration = carried_out(["calibration"], first)["calibration"]
    assert [sorted(map(kind, configs)) for configs in first.rounds] == [["tune"] * 3]
    tuned = summary_of(place, calibration, MAIN)
    assert (len(tuned["runs"]["tuning"]), tuned["runs"]["refit"], tuned["runs"]["swa"]) == (2, [], [])

    second = Counting(place)
    batchnorm = carried_out(["batchnorm"], second)["batchnorm"]
    assert len(second.trained) == 1 and not set(second.trained) & set(first.trained)
    refitted = summary_of(place, batchnorm, MAIN)
    assert (refitted["runs"]["refit"], refitted["runs"]["tuning"]) == (second.trained, tuned["runs"]["tuning"])
    assert batchnorm.pairs[0].protocol == calibration.pairs[0].protocol

    third = Counting(place)
    carried_out(["calibration"], third)
    assert third.trained == []
    assert summary_of(place, calibration, MAIN) == refitted, "what is there is not taken away"
    assert set(manifests(place)) == {"calibration", "batchnorm"}


def test_an_arm_that_starts_from_refits_has_them_trained(tmp_path: Path):
    counting = Counting(Place(runs=tmp_path / "runs"))
    study = replace(STUDIES["constant-lr"], stages=("tune",))
    [manifest] = run_here([study], counting).values()
    assert [kind(config)[:4] for configs in counting.rounds for config in configs] == ["tune", "refi", "rate"]
    assert manifest.state == "done"


def test_what_any_study_wants_of_a_pair_is_wanted_of_it_once():
    studies = [STUDIES[name] for name in ("bootstrap", "sampling-period", "generalization", "step-decay")]
    pairs = {pair.name: pair for pair in settings_of(studies, "demo")}
    assert list(pairs) == [MAIN, WIDE, WRONG]
    assert pairs[MAIN].arms == ("bootstrap", "bootstrap every 5", "every 1", "every 2", "every 4", "every 8", "step")
    assert pairs[MAIN].stages == {"tune", "refit", "swa"}
    assert (pairs[WIDE].arms, pairs[WIDE].stages) == ((), {"tune", "refit", "swa"})
    [alone] = settings_of([STUDIES["bootstrap"]], "demo", lambda config: replace(config, seeds=4))
    assert (alone.arms, alone.stages, alone.config.seeds) == (("bootstrap", "bootstrap every 5"), {"tune"}, 4)


# When something fails ------------------------------------------------------------------------------------------------


def remove(place: Place, *kinds: str) -> None:
    """Take away the runs of some kinds, so that they must be trained again."""
    for run in runs_in(place):
        config = RunFolder(place.runs / run).config()
        mine = "SWA" if config["swa"] else "held" if config["constant_from"] else config["trained_on"]
        if mine in kinds:
            shutil.rmtree(place.runs / run)


def is_wide(config: RunConfig) -> bool:
    return config.recipe.training.width == 5


def test_a_run_that_fails_sets_its_pair_aside_and_the_others_finish(tmp_path: Path):
    place = Place(runs=tmp_path / "runs")
    counting = Counting(place, fails=is_wide)
    written = carried_out(["lr-search", "consistency", "batchnorm"], counting)
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
    assert not any(map(is_wide, counting.rounds[1])), "nothing more of it is tried"
    assert counting.noted[1]["lr-search"].state == "failed" and counting.noted[1]["batchnorm"].state == "running"
    by_pair = {pair.pair: pair.protocol for pair in written["consistency"].pairs}
    assert by_pair[WIDE] is None and by_pair[MAIN] == written["batchnorm"].pairs[0].protocol is not None

    second = Counting(place)
    assert {each.state for each in carried_out(["lr-search", "consistency"], second).values()} == {"done"}
    assert len(second.trained) == 2, "tuning and refit of the pair that had failed"


@pytest.mark.parametrize(
    ("removed", "fails", "failed", "words"),
    [
        ("SWA", lambda config: config.swa and is_wide(config), {"generalization"}, f"{WIDE}: 1 of 1 runs failed"),
        (
            "held",
            lambda config: config.constant_from and not config.swa,
            {"constant-lr"},
            f"{CONSTANT}: 1 of 1 runs fai",
        ),
    ],
)
def test_a_failure_in_a_later_round_is_one_of_its_own_pair(
    copied: Place, removed: str, fails: Any, failed: set[str], words: str
):
    remove(copied, removed)
    names = ["generalization", "constant-lr", "batchnorm", "label-noise"]
    written = carried_out(names, Counting(copied, fails=fails))
    assert {name for name, manifest in written.items() if manifest.state == "failed"} == failed
    assert {name for name, manifest in written.items() if manifest.state == "done"} == set(names) - failed
    assert written[next(iter(failed))].reason.startswith(words)


def test_data_that_is_not_there_sets_its_pairs_aside_before_anything_is_trained_of_them(copied: Place):
    def load(config: ProtocolConfig) -> Dataset:
        if config.data.noise:
            raise FileNotFoundError("there is no file batches; fetch it with emabank data")
        return DIGITS

    counting = Counting(copied)
    written = carried_out(["generalization", "label-noise", "batchnorm"], counting, load=load)
    assert {name: manifest.state for name, manifest in written.items()} == {
        "generalization": "failed",
        "label-noise": "failed",
        "batchnorm": "done",
    }
    assert written["label-noise"].reason == f"{WRONG}: there is no file batches; fetch it with emabank data"
    assert all(config.recipe.data.noise == 0 for configs in counting.rounds for config in configs)


def test_when_every_pair_is_set_aside_nothing_is_started_and_every_study_says_why(tmp_path: Path):
    def load(config: ProtocolConfig) -> Dataset:
        raise FileNotFoundError("no files")

    counting = Counting(Place(runs=tmp_path / "runs"))
    written = carried_out(["lr-search", "sampling-period"], counting, load=load)
    assert counting.rounds == []
    assert written["lr-search"].reason == f"{MAIN}: no files; {WIDE}: no files"
    assert (written["sampling-period"].state, written["sampling-period"].overheads) == ("failed", ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subset": 10**6}, "subset"),
        ({"milestones": (0.1, 0.2)}, "milestones are 0.1 0.2; give rising shares of the run, after the warm-up"),
    ],
)
def test_what_cannot_be_trained_is_found_before_anything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
):
    main = PROTOCOLS[MAIN]
    parts = {
        part: replace(getattr(main, part), **{k: v for k, v in changes.items() if hasattr(getattr(main, part), k)})
        for part in ("data", "training")
    }
    small_scale(monkeypatch, {**PROTOCOLS, MAIN: replace(main, **parts)})
    counting = Counting(Place(runs=tmp_path / "runs"))
    written = carried_out(["step-decay"], counting)["step-decay"]
    assert (written.state, counting.rounds) == ("failed", [])
    assert words in written.reason and "\n" not in written.reason


def test_training_that_diverges_everywhere_is_told_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small_scale(monkeypatch, {**PROTOCOLS, WIDE: replace(PROTOCOLS[WIDE], rates=(1e20,))})
    written = carried_out(["lr-search", "bootstrap"], Counting(Place(runs=tmp_path / "runs")))
    assert (written["lr-search"].state, written["bootstrap"].state) == ("failed", "done")
    assert written["lr-search"].reason.startswith(f"{WIDE}: with seed 0 the training diverged at every learning rate")


# When it is interrupted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [0, 2, 4])
def test_interrupted_it_says_that_it_runs_and_goes_on_with_what_is_missing(
    finished_studies: Finished, tmp_path: Path, last: int
):
    place, names = Place(runs=tmp_path / "runs"), ["lr-search", "step-decay"]
    first = Counting(place, last=last)
    with pytest.raises(KeyboardInterrupt):
        carried_out(names, first)
    assert {name: manifest.state for name, manifest in manifests(place).items()} == dict.fromkeys(names, "running")
    second = Counting(place)
    written = carried_out(names, second)
    assert {manifest.state for manifest in written.values()} == {"done"}
    assert not set(first.trained) & set(second.trained)
    assert len(first.trained) == last and len(first.trained + second.trained) == 2 + 1 + 1 + 1
    assert set(first.trained + second.trained) <= set(finished_studies[1].trained), (
        "the same runs as when nothing happens"
    )


def test_with_more_seeds_what_was_finished_stays_until_there_is_something_new(
    finished_studies: Finished, copied: Place
):
    def more_seeds(config: ProtocolConfig) -> ProtocolConfig:
        return replace(config, seeds=(*config.seed_numbers, 7))

    before = as_written(finished_studies[0]["step-decay"])
    with pytest.raises(KeyboardInterrupt):
        run_here(["step-decay"], Counting(copied, last=1), change=more_seeds)
    now = as_written(manifests(copied)["step-decay"])
    assert (now.state, now.pairs) == ("running", before.pairs)
    run_here(["step-decay"], Counting(copied), change=more_seeds)
    now = as_written(manifests(copied)["step-decay"])
    assert now.state == "done" and {pair.protocol for pair in now.pairs}.isdisjoint(
        {pair.protocol for pair in before.pairs}
    )


def test_a_fault_of_the_program_is_not_taken_for_one_of_a_pair(tmp_path: Path):
    def load(config: ProtocolConfig) -> Dataset:
        raise TypeError("a fault")

    with pytest.raises(TypeError, match="a fault"):
        carried_out(["batchnorm"], Counting(Place(runs=tmp_path / "runs")), load=load)


# Two processes that want the same study -------------------------------------------------------------------------------


def alone(name: str, counting: Counting) -> Manifest:
    [manifest] = run_here([name], counting).values()
    return manifest


class Meanwhile(Counting):
    """In the middle of each round someone else wants the same study, and another one."""

    asked = 0

    def __call__(self, jobs: Sequence[Job], **counted: int) -> dict[str, Outcome]:
        before = manifests(self.place)
        told = rf"the study lr-search at scale demo is in use by process {os.getpid()} on .*; wait until it has ended"
        with pytest.raises(LockedError, match=told):
            alone("lr-search", Counting(self.place))
        assert manifests(self.place) == before
        if not self.asked:
            assert alone("batchnorm", Counting(self.place)).state == "done", "another study is free"
        self.asked += 1
        return super().__call__(jobs, **counted)


def test_the_second_is_told_who_has_the_study_and_notes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_scale(monkeypatch)
    counting = Meanwhile(Place(runs=tmp_path))
    assert alone("lr-search", counting).state == "done"
    assert counting.asked
    assert manifests(counting.place)["lr-search"].state == "done"
    assert alone("lr-search", Counting(counting.place)).state == "done", "it is free again"
