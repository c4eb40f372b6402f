"""Every script measures what it says, on tiny models: peers really average, a step not due allocates nothing."""

import evaluation
import large
import memory
import overhead
import posthoc
import pytest
import torch
import update
from evaluation import SHARED, Way, check_same, enough, make_batches, make_subject, random_images
from harness import check_averages
from models import NAMES, build
from peers import BANKS, PEERS, NotAvailable, Packages, decays, make_bank

from emabank import EMA, EMABank
from emabank.study.bench import BANK, LIMIT, Rounds, averaged_tensors, spread


@pytest.fixture(autouse=True)
def threads_and_random_numbers_as_before():
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """What is installed; nothing is downloaded."""
    monkeypatch.setattr("subprocess.run", lambda *_, **__: (_ for _ in ()).throw(OSError("no network in tests")))
    return Packages(tmp_path)


def small_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_really_averages(peer, packages):
    try:
        contestant = peer.build(packages, small_model(), 2)
    except NotAvailable as error:
        pytest.skip(str(error))
    check_averages(contestant, Rounds([contestant]).prepare)
    assert len(contestant.read()) == 3


@pytest.mark.parametrize("name", BANKS)
def test_a_bank_really_averages(name):
    contestant = make_bank(name, small_model(), 2)
    check_averages(contestant, Rounds([contestant]).prepare)


def test_decays_are_the_papers_and_all_different():
    assert decays(5) == [0.968, 0.984, 0.992, 0.996, 0.998]
    assert len(set(decays(20))) == 20 and max(decays(20)) < 1


def test_models_have_the_sizes_they_are_named_after():
    with torch.device("meta"):
        sizes = {name: sum(p.numel() for p in build(name).parameters()) for name in NAMES if "resnet" not in name}
    assert sizes["gpt124m"] == 124_439_808
    assert all(0.95 < sizes[f"gpt{m}m"] / (m * 1e6) < 1.1 for m in (1, 16, 256, 500))
    assert len(averaged_tensors(build("small1000-bf16"))) == 1000
    with pytest.raises(ValueError, match="model must be one of .*; got vgg"):
        build("vgg")


def test_a_step_that_is_not_due_allocates_nothing():
    bank = EMABank(small_model(), [EMA(per_update=0.9), EMA(per_update=0.99)], every=10**9)
    cost = update.measure_not_due(bank.update, calls=100, repeats=3)
    assert cost.operators == 0
    assert cost.kept_bytes <= 64 and cost.transient_bytes <= 64  # the next value of the step counter
    due = update.measure_not_due(EMABank(small_model(), [0.9], every=1).update, calls=1, repeats=1)
    assert due.operators > 0


def test_an_update_has_rows_for_all_that_take_part_and_reasons_for_the_others(packages):
    chosen = [peer for peer in PEERS if peer.package in ("torch", "timm")]
    case = update.measure("resnet20", 1, chosen, packages, seconds=0.01)
    names = [row.name for row in case.rows]
    assert names == [LIMIT, *BANKS, "torch AveragedModel", "torch AveragedModel, buffers"]
    assert set(case.missing) == {"timm ModelEmaV3", "timm ModelEmaV3, no buffers"}
    assert case.row(LIMIT).over[LIMIT].median == case.row(BANK).over[BANK].median == 1.0
    assert update.fastest_peer(case)[0].startswith("torch AveragedModel")


def test_peers_that_do_not_fit_into_memory_together_run_apart():
    size, limit = 10**9, 4 * update.LIMIT_ELEMENTS
    ours, groups = update.plan_groups(size, PEERS, int((limit + 9.5 * size) / update.MEMORY_SHARE))
    assert len(ours) == len(BANKS) and [len(group) for group in groups] == [4, 4, 2]
    assert update.plan_groups(size, PEERS, size) == ([BANK], [])


@pytest.mark.parametrize("name", ["resnet20", "small1000", "gpt1m", "gpt1m-bf16"])
def test_a_training_step_changes_the_weights(name):
    model = build(name)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step, _ = overhead.training_step(model, batch=2)
    step()
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_bank_weighs_its_averages_and_little_more():
    cost = memory.weigh("small1000", 5)
    averages = 5 * 4 * 136_000
    assert averages <= cost["tensors"] <= memory.allowed(136_000, 5) == averages + 2**20


@pytest.mark.slow
def test_a_large_model_is_weighed_stage_by_stage(tmp_path):
    case = large.weigh_apart("gpt1m", tmp_path, 0.01)
    stages = {stage["name"]: stage for stage in case.about["stages"]}
    assert {"bank built", "one average applied", "bank saved", "bank loaded"} <= set(stages)
    assert stages["bank built"]["peak"] >= 5 * 4 * case.about["parameters"]
    assert case.row(BANK).better == "lower"


@pytest.mark.parametrize("task", ["evaluations", "recalibrations"])
def test_all_ways_give_the_same_and_a_wrong_one_is_an_error(task):
    torch.set_num_threads(1)
    subject = make_subject("resnet8", 2)
    ways = getattr(evaluation, task)(subject, list(make_batches(random_images(8), None)))
    check_same(ways)
    results = ways[SHARED].results()
    with pytest.raises(RuntimeError, match="wrong gives other results"):
        check_same({SHARED: ways[SHARED], "wrong": Way(list, lambda: results[::-1])})
    with pytest.raises(RuntimeError, match="a mix-up would not show"):
        check_same({SHARED: Way(list, lambda: [results[0], results[0]])})


def test_a_dataloader_gives_the_batches_that_memory_gives():
    images = random_images(10)
    for (inputs, labels), (expected, same) in zip(make_batches(images, 0), make_batches(images, None), strict=True):
        torch.testing.assert_close(inputs, expected)
        assert torch.equal(labels, same)


@pytest.mark.parametrize(
    ("means", "worst", "size"),
    [
        ((-0.02, 0.0, 0.0), (-0.02, 0.0, 0.0), 64),
        ((0.0, -0.02, 0.0), (0.0, 0.0, 0.0), 128),
        ((0.0,) * 3, (-0.1,) * 3, None),
    ],
)
def test_a_number_of_images_is_enough_if_every_larger_one_is(means, worst, size):
    points = [
        {"images": images, "accuracy": spread([mean]), "worst": low}
        for images, mean, low in zip((32, 64, 128), means, worst, strict=True)
    ]
    assert enough([{"standard_error": 0.01, "points": points}]) == size


def test_more_snapshots_bring_a_synthesis_nearer(tmp_path):
    results = posthoc.measure(0, 2, (21, 3), tmp_path, None)
    slow = [result for result in results if result.rule == "EMA, half-life 10%"]
    few, many = ([result for result in slow if result.snapshots == count] for count in (2, 14))
    assert all(m.error < f.error and m.distance < f.distance for f, m in zip(few, many, strict=True))
