"""Shared passes, without timing anything: that all ways come to the same, that a wrong one is refused, ratios."""

import gc
import multiprocessing

import pytest
import torch

from emabank.bench import evaluation, interleave
from emabank.bench.cases import Case
from emabank.bench.evaluation import (
    APPLIED,
    COPIES,
    SECOND,
    SHARED,
    UPDATE_BN,
    Entry,
    Passes,
    check_same,
    evaluations,
    fitting_images,
    make_batches,
    make_subject,
    measure_evaluation,
    measure_recalibration,
    passes_table,
    random_images,
    ratio_of,
    recalibrations,
    ways_of,
)
from emabank.bench.interleave import Run


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def subject():
    return make_subject("resnet8", 2, channels_last=True)


def in_memory(count, batch, **options):
    return make_batches(random_images(count), batch=batch, **({"workers": None, "channels_last": True} | options))


def dark_and_bright():
    """Two batches that differ, as those of other images do less."""
    images = list(in_memory(8, 4))
    return [(inputs + shift, labels) for (inputs, labels), shift in zip(images, (-3.0, 3.0), strict=True)]


# What takes part ------------------------------------------------------------------------------------------------------


def test_the_subject_is_in_training_and_its_copies_hold_its_averages(subject):
    assert subject.model.training
    weight = "stem.0.weight"
    averages = [subject.bank.weights(name)[weight] for name in subject.bank.names]
    assert all(
        torch.equal(copy.get_parameter(weight), each) for copy, each in zip(subject.copies, averages, strict=True)
    )
    assert not torch.equal(*averages)
    assert not torch.equal(averages[0], subject.model.get_parameter(weight))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("channels_last", [True, False])
def test_a_dataloader_gives_the_batches_that_memory_gives(workers, channels_last):
    order = torch.channels_last if channels_last else torch.contiguous_format
    drawn = in_memory(10, 4, workers=workers, channels_last=channels_last)
    for _ in range(2):
        pairs = zip(drawn, in_memory(10, 4, channels_last=channels_last), strict=True)
        for (inputs, labels), (expected, expected_labels) in pairs:
            torch.testing.assert_close(inputs, expected)
            assert torch.equal(labels, expected_labels)
            assert inputs.is_contiguous(memory_format=order)
            assert expected.is_contiguous(memory_format=order)
    del drawn, pairs
    gc.collect()
    assert multiprocessing.active_children() == []


def test_all_ways_to_evaluate_predict_the_same_and_leave_the_model_as_it_was(subject):
    before = {key: tensor.clone() for key, tensor in subject.model.state_dict().items()}
    entries = evaluations(subject, in_memory(6, 4))
    assert [entry.name for entry in entries] == [SHARED, COPIES, SECOND, APPLIED]
    check_same(entries)
    for entry in entries:
        assert [tuple(logits.shape) for logits in entry.action()] == [(6, 10)] * 3
        assert subject.model.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in subject.model.state_dict().items())


@pytest.mark.parametrize("channels_last", [True, False])
def test_both_ways_to_recalibrate_find_the_same_of_one_batch(channels_last):
    subject = make_subject("resnet8", 2, channels_last=channels_last)
    entries = recalibrations(subject, in_memory(8, 8, channels_last=channels_last), variances=True)
    assert [entry.name for entry in entries] == [SHARED, UPDATE_BN]
    check_same(entries)


def test_of_several_batches_the_means_are_the_same_and_the_variances_are_not(subject):
    check_same(recalibrations(subject, dark_and_bright(), variances=False))
    with pytest.raises(RuntimeError, match="update_bn does not come to the same"):
        check_same(recalibrations(subject, dark_and_bright(), variances=True))


def test_a_way_that_comes_to_something_else_is_not_timed():
    def entry(name, *found):
        return Entry(name, lambda: None, lambda: [torch.tensor([each, 2.0]) for each in found])

    shared = entry(SHARED, 1.0, 3.0)
    check_same([shared, entry("near", 1.0001, 3.0)])
    for found in ((1.1, 3.0), (1.0,), (1.0, float("nan")), (3.0, 1.0)):
        with pytest.raises(RuntimeError, match="other does not come to the same as one shared pass"):
            check_same([shared, entry("other", *found)])
    with pytest.raises(RuntimeError, match="two sets of weights come to the same"):
        check_same([entry(SHARED, 1.0, 1.0)])


# Measuring ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "one", "expected"),
    [("evaluation", 0.1, 5), ("recalibration", 0.1, 15), ("evaluation", 9.0, 4), ("evaluation", 0.001, 16)],
)
def test_images_are_chosen_to_fill_the_seconds(subject, task, one, expected):
    ticks = iter([0.0, one])
    rounds = interleave.WARMUP_ROUNDS + 2 + interleave.FEWEST_ROUNDS
    seconds = rounds * 6.0 + 0.001  # a round of 4 ways with 3 passes each, or of 2 ways with 2
    found = fitting_images(task, subject, list(in_memory(2, 2)), seconds=seconds, clock=lambda: next(ticks))
    assert found == expected * 2


def test_ratios_are_taken_within_a_round_and_the_shared_pass_comes_first():
    ways = ways_of(Run({COPIES: [3.0, 6.0], APPLIED: [1.0, 4.0], SHARED: [1.0, 2.0]}, 0, 0.0))
    assert [(way.name, way.over_shared.median) for way in ways] == [(SHARED, 1.0), (APPLIED, 1.5), (COPIES, 3.0)]
    assert ways[0].milliseconds.mean == pytest.approx(1500)


@pytest.fixture
def few_rounds(monkeypatch):
    monkeypatch.setattr(interleave, "FEWEST_ROUNDS", 2)
    monkeypatch.setattr(interleave, "WARMUP_ROUNDS", 1)


@pytest.mark.parametrize(("measure", "ways"), [(measure_evaluation, 4), (measure_recalibration, 2)])
def test_a_measurement_goes_over_whole_batches(few_rounds, measure, ways):
    lines = []
    found = measure("resnet8", averages=2, seconds=0.01, images=4, workers=0, threads=1, progress=lines.append)
    assert (found.images, found.batch, found.threads, found.channels_last) == (4, 4, 1, True)
    assert (len(found.ways), found.case.rounds >= 2, found.case.averages) == (ways, True, 2)
    assert found.fastest_other.name != SHARED
    assert lines
    real = measure("resnet8", averages=1, seconds=0.01, images=4, pixels=random_images(3), channels_last=False)
    assert (real.images, real.batch, real.channels_last) == (3, 3, False)


def test_threads_are_as_before_after_a_measurement():
    with pytest.raises(KeyError), evaluation._threads(2):
        assert torch.get_num_threads() == 2
        raise KeyError
    assert torch.get_num_threads() == 1


def test_what_is_not_the_same_is_not_timed(few_rounds, monkeypatch):
    monkeypatch.setattr(evaluation, "update_bn", lambda data, module: None)
    with pytest.raises(RuntimeError, match="its time means nothing"):
        measure_recalibration("resnet8", averages=2, images=4)


# Showing --------------------------------------------------------------------------------------------------------------


def test_a_result_is_shown_whole_and_its_ratio_has_a_name():
    ways = ways_of(Run({SHARED: [1.0, 2.0], UPDATE_BN: [1.5, 3.0]}, 0, 0.0))
    case = Case("resnet20", 5, 100, 3, 2, None, 0, 0.3, ())
    passes = Passes("recalibration", case, "DataLoader, 2 workers", 512, 128, 1, True, ways)
    text = passes_table(passes)
    for words in ("resnet20, recalibration of 5 averages, DataLoader, 2 workers", "512 images", "DISTURBED", "1.5 ("):
        assert words in text
    ratio = ratio_of(passes)
    assert ratio.name == "recalibration/resnet20/5/1/dataloader-2-workers/faster-than-alone"
    assert (ratio.value.median, ratio.rounds, ratio.better) == (1.5, 2, "higher")
