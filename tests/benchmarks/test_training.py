"""The logic of the training benchmark, without timing anything: that both loops do the same, shares, verdicts."""

import json
import multiprocessing
from itertools import chain, islice

import pytest
import recipes
import torch
import training
from recipes import (
    ALL,
    ALONE,
    BARE,
    DENSE,
    DRAWN,
    LOADER,
    RECALIBRATION,
    SPARSE,
    UPDATES,
    PlainImages,
    PlainLoop,
    Size,
    Stopwatch,
    UpdateTime,
    cifar_like,
    contestants,
    plain_batches,
    size_of,
    study_training,
    take_steps,
)

from emabank import EMABank
from emabank.bench import interleave, machine
from emabank.bench.cases import Case
from emabank.bench.interleave import Run, Spread
from emabank.study.data.images import make_images, normalisation_of
from emabank.study.data.splits import Parts, make_parts

PLAIN = {workers: recipes.RECIPE.format(workers) for workers in (0, 2)}
PIPELINE = {workers: recipes.DATALOADER.format(workers) for workers in (0, 2)}


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class FakeClock:
    """Advances only when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


@pytest.fixture(scope="module")
def parts():
    return make_parts(cifar_like(60), subset=60)


def small_training(parts, every=1):
    return study_training("resnet8", parts, every=every, batch=8)


def same_weights(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def numbered(count, side=6):
    """Images that can be told apart, each of a class of its own."""
    pixels = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    part = make_images(pixels, torch.arange(count))
    return Parts(part, None, part, count, normalisation_of(part))


# What takes part ------------------------------------------------------------------------------------------------------


def test_the_bare_loop_trains_bit_for_bit_as_the_study_does_with_averages(parts):
    study, like = small_training(parts), small_training(parts)
    bare = PlainLoop(like, like.loader)
    begun = small_training(parts).model
    take_steps(study, 8)  # one epoch has six
    bare.take_steps(8)
    assert same_weights(study.model, bare.model)
    assert not same_weights(study.model, begun)
    assert (study.bank.num_updates, like.bank.num_updates) == (8, 0)


def test_a_turn_goes_on_where_the_last_one_stopped(parts):
    split, whole = small_training(parts), small_training(parts)
    for steps in (2, 5, 1):
        take_steps(split, steps)
    take_steps(whole, 8)
    assert same_weights(split.model, whole.model)


def test_a_run_that_is_over_is_not_timed(parts):
    over = small_training(parts)
    over.diverged = True
    with pytest.raises(RuntimeError, match="ended after 0 steps of 2"):
        take_steps(over, 2)


def test_a_plain_image_is_a_crop_of_its_reflection_flipped_or_not_and_normalised():
    crop, side = recipes.CROP, 12  # in smaller images some crops are mirror images of others
    parts = numbered(2, side)
    places = [abs(place) if place < side else 2 * (side - 1) - place for place in range(-crop, side + crop)]
    reflected = parts.train.images[1][:, places][:, :, places].double()
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in vars(parts.normalisation).values())
    possible = {}
    for top in range(2 * crop + 1):
        for left in range(2 * crop + 1):
            piece = (reflected[:, top : top + side, left : left + side] - mean) / std
            possible |= {(top, left, False): piece, (top, left, True): piece.flip(2)}
    expected = torch.stack(list(possible.values()))
    images = PlainImages(parts.train, parts.normalisation)
    torch.manual_seed(0)
    met = set()
    for _ in range(2500):
        image, label = images[1]
        assert (image.dtype, label) == (torch.float32, 1)
        distances = (expected - image).abs().amax(dim=(1, 2, 3))
        assert distances.min() < 1e-5
        met.add(int(distances.argmin()))
    assert len(met) == len(possible) == 2 * 9 * 9


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_the_plain_recipe_meets_every_image_once(workers):
    drawn = plain_batches(numbered(21), batch=8, workers=workers)
    epochs = [[labels.tolist() for _, labels in drawn] for _ in range(2)]
    assert [len(batch) for batch in epochs[0]] == [8, 8, 5]
    assert all(sorted(chain.from_iterable(epoch)) == list(range(21)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_images_begin_again_when_they_end():
    assert list(islice(recipes.endless([1, 2]), 5)) == [1, 2, 1, 2, 1]


def test_only_the_update_is_timed_and_not_the_hooks_around_it(monkeypatch):
    clock, model = FakeClock(), torch.nn.Linear(2, 1)

    def attach(bank, optimizer):
        return optimizer.register_step_post_hook(lambda *_: clock.advance(3))

    monkeypatch.setattr(EMABank, "attach", attach)
    optimizer, spent = torch.optim.SGD(model.parameters(), lr=0.1), UpdateTime(clock)
    optimizer.register_step_post_hook(lambda *_: clock.advance(100))
    with spent.watching():
        EMABank(model, [0.9]).attach(optimizer)
    optimizer.register_step_post_hook(lambda *_: clock.advance(100))
    for _ in range(2):
        optimizer.step()
    assert (spent.seconds, clock.now, EMABank.attach) == (6, 406, attach)
    spent.clear()
    assert spent.seconds == 0


def test_a_stopwatch_can_be_held_and_moved():
    clock = FakeClock()
    watch = Stopwatch(clock)
    clock.advance(1)
    with pytest.raises(KeyError), watch.held():
        clock.advance(10)
        raise KeyError
    watch.add(0.5)
    clock.advance(2)
    assert watch() == 3.5


def test_batches_that_were_ready_before_the_turn_are_not_in_its_time():
    clock = FakeClock()
    watch = Stopwatch(clock)
    drawn = iter(lambda: clock.advance(1), "never")
    recipes._draw(drawn, 4, watch)
    assert (watch(), clock()) == (DRAWN, DRAWN + 4)


def test_everybody_takes_part_and_an_update_is_one_of_the_loops(parts):
    clock = Stopwatch(FakeClock())
    field = contestants("resnet8", parts, size_of(parts, steps=1, batch=8), workers=[0], clock=clock, recalibrate=True)
    turns = {contestant.name: contestant.update for contestant in field}
    assert list(turns) == [
        SPARSE, DENSE, UPDATES, ALL, ALONE, RECALIBRATION, BARE, PLAIN[0], LOADER, PIPELINE[0]
    ]  # fmt: skip
    for name, action in turns.items():
        before = clock()
        action()
        assert (clock() > before) is (name == UPDATES)  # the rest is timed by the clock behind it, which stands still


def test_a_loop_whose_updates_are_not_seen_is_not_timed(parts, monkeypatch):
    monkeypatch.setattr(EMABank, "attach", lambda bank, optimizer: None)
    monkeypatch.setattr(UpdateTime, "_end", lambda *_: None)
    size = size_of(parts, steps=1, batch=8)
    turns = {c.name: c.update for c in contestants("resnet8", parts, size, workers=[0], clock=Stopwatch())}
    with pytest.raises(RuntimeError, match="no update was seen"):
        turns[DENSE]()
    assert RECALIBRATION not in turns


def test_without_a_validation_part_there_is_nothing_to_evaluate(parts):
    alone = make_parts(cifar_like(60), trained_on="100%")
    with pytest.raises(ValueError, match="no validation part"):
        contestants("resnet8", alone, size_of(alone, steps=1, batch=8), workers=[0], clock=Stopwatch())


# From seconds to numbers ----------------------------------------------------------------------------------------------

SIZE = Size(steps=2, batch=50, evaluated=250, recalibrated=500, train=1000, validation=500)
TIMES = {
    SPARSE: [1.0, 2.0], DENSE: [1.1, 2.2], UPDATES: [0.1, 0.2], ALL: [3.0, 6.0], ALONE: [0.5, 1.0], BARE: [1.0, 2.0],
    PLAIN[0]: [1.21, 2.42], PLAIN[2]: [0.99, 1.98],
    LOADER: [0.1, 0.2], PIPELINE[0]: [0.8, 1.6], PIPELINE[2]: [0.4, 0.8],
}  # fmt: skip


def result(times=TIMES, bystanders=0.01):
    case = Case("resnet8", 5, 100, 3, 2, None, 0, bystanders, ())
    run = Run(times, 0, bystanders)
    return training.result_of(case, run, threads=1, size=SIZE, workers=[0, 2])


def test_speeds_are_images_over_seconds_and_ratios_are_taken_within_a_round():
    speeds = {speed.name: speed for speed in (*result().loops, *result().pipelines)}
    assert speeds[DENSE].images_a_second.median == pytest.approx((100 / 1.1 + 100 / 2.2) / 2)
    assert speeds[LOADER].images_a_second.mean == pytest.approx((DRAWN * 50 / 0.1 + DRAWN * 50 / 0.2) / 2)
    over = {name: ratio.median for name, ratio in speeds[DENSE].over.items()}
    assert over == pytest.approx({BARE: 1 / 1.1, PLAIN[0]: 1.1, PLAIN[2]: 0.9})
    assert {name: ratio.high for name, ratio in speeds[LOADER].over.items()} == pytest.approx(
        {PIPELINE[0]: 8.0, PIPELINE[2]: 4.0}
    )


def test_parts_of_an_epoch_are_scaled_to_it_and_make_it_up():
    # Of an epoch a turn trains a tenth, evaluates a half and recalibrates a half.
    for times, whole in ((TIMES, 11 + 6), (TIMES | {RECALIBRATION: [4.0, 8.0]}, 11 + 6 + 8)):
        found = result(times)
        seconds = [10, 1, 1, 5] + [8] * (RECALIBRATION in times)
        assert [cost.share.median for cost in found.costs] == pytest.approx([part / whole for part in seconds])
        assert [cost.seconds.low for cost in found.costs] == pytest.approx([part * 1.1 for part in seconds])
        assert found.epoch.median == pytest.approx(whole / (10 + 1))
        assert found.evaluation.median == pytest.approx(6)


@pytest.mark.parametrize(
    ("recipe", "bystanders", "expected"),
    [(1.12, 0.01, [True, True]), (1.05, 0.01, [True, False]), (0.97, 0.01, [False, False]), (1.12, 0.3, [None, None])],
)
def test_the_loop_is_judged_by_the_faster_plain_recipe_and_a_tie_counts(recipe, bystanders, expected):
    judged = training.judge(result(TIMES | {PLAIN[2]: [recipe, 2 * recipe]}, bystanders))
    assert [verdict.passed for verdict in judged] == expected
    assert all(PLAIN[2] in verdict.found for verdict in judged)


def test_a_result_is_shown_whole():
    text = training.result_text(result())
    for words in ("resnet8, 5 averages, 1 thread", "2 rounds of 2 × 50 images", PLAIN[2], LOADER, "5.88 %", "0.368 %"):
        assert words in text
    assert "DISTURBED" in training.result_text(result(bystanders=0.3))


@pytest.mark.parametrize(("step", "expected"), [(0.1, 4), (0.05, 10), (3.0, 1)])
def test_steps_are_chosen_to_fill_the_seconds(step, expected):
    rounds = interleave.WARMUP_ROUNDS + 2 + interleave.FEWEST_ROUNDS
    assert training.fitting_steps(step, seconds=3 * rounds, others=10, loops=5) == expected


def test_workers_of_this_process_are_no_bystanders():
    class Watched:
        def __init__(self, pid):
            self.pid = pid

        def share(self):
            return {None: 0.5, 7: 0.4, 8: 0.3, 9: None}[self.pid]

    assert machine.AllButWorkers(workers=[7, 8], watch=Watched).share() == pytest.approx(0.2)
    assert machine.AllButWorkers(workers=[], watch=Watched).share() == 0.5
    assert machine.AllButWorkers(workers=[7, 9], watch=Watched).share() is None


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_command_prints_and_keeps_a_result_and_leaves_no_worker(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(interleave, "FEWEST_ROUNDS", 2)
    monkeypatch.setattr(interleave, "WARMUP_ROUNDS", 1)
    file = tmp_path / "training.json"
    small = ["--networks", "resnet8", "--seconds", "0.01", "--images", "60", "--batch", "8", "--workers", "1"]
    assert training.main([*small, "--json", str(file)]) == 0
    kept, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert "evaluation of five averages" in shown and "not slower than the plain recipe" in shown
    assert kept["conditions"]["torch"] == torch.__version__
    (found,) = kept["results"]
    assert (found["size"]["steps"], found["threads"], found["case"]["rounds"] >= 2) == (1, 1, True)
    assert sum(Spread(**cost["share"]).mean for cost in found["costs"]) == pytest.approx(1)
    assert len(kept["verdicts"]) == 2
    assert multiprocessing.active_children() == []


def test_data_that_is_not_there_is_told_in_one_sentence(tmp_path, capsys):
    assert training.main(["--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"training.py: {tmp_path} holds neither ")


def test_help_helps(capsys):
    with pytest.raises(SystemExit) as ended:
        training.main(["--help"])
    assert ended.value.code == 0
    assert "--recalibrate" in capsys.readouterr().out
