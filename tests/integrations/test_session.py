"""What the integrations share: batches while training is in the middle of an epoch, states before a bank is there."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from integrations.by_hand import data, network
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from emabank.integrations._session import CallbackSession, Settings, batches_of, check_reiterable, metric_names


def listed(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


class Counted(Dataset[torch.Tensor]):
    """Counts how it is asked."""

    def __init__(self) -> None:
        self.together = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("the data must not be copied")


class Together(Counted):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        self.together += 1
        return [torch.tensor(index) for index in indices]


@pytest.mark.parametrize("kind", [Counted, Together])
def test_batches_are_those_of_the_loader_while_it_is_in_use(kind: type[Counted]):
    dataset = kind()
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(dataset, batch_size=4, sampler=RandomSampler(dataset, generator=generator))
    state = generator.get_state()
    found = listed(batches_of(loader))
    assert torch.equal(generator.get_state(), state)
    running = iter(loader)
    first = next(running)
    listed(batches_of(loader))
    assert [first.tolist(), *listed(running)] == found
    assert sorted(index for batch in found for index in batch) == list(range(6))
    assert dataset.together in (0, 2 * 3)  # each of the three passes, by two batches


def test_batches_of_a_sampler_of_batches_and_of_single_samples():
    dataset = Counted()
    sampler = BatchSampler(range(5), batch_size=2, drop_last=True)
    assert listed(batches_of(DataLoader(dataset, batch_sampler=sampler))) == [[0, 1], [2, 3]]
    assert listed(batches_of(DataLoader(dataset, batch_size=None))) == list(range(6))
    assert list(batches_of([1, 2])) == [1, 2]


def test_what_has_one_pass_only_is_refused():
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    for loader, why in [(iter([1]), "one pass only"), (None, "there is none"), (DataLoader(Stream()), "a stream")]:
        with pytest.raises(ValueError, match=f"{why}.*Give recalibrate_on= a loader for it, or recalibrate=False"):
            check_reiterable(loader)


def test_a_state_waits_for_the_bank_and_is_let_go_if_none_comes():
    settings = Settings([0.9], every=1, criteria={"loss": "min"}, recalibrate=False)
    first = CallbackSession(settings)
    first.start(network())
    first.bank.update()
    first.observe(1, {"live": {"loss": 1.0}, "ema-0.9": {"loss": 0.5}})
    second = CallbackSession(settings)
    assert second.state_dict() == {}
    with pytest.raises(RuntimeError, match="There is no bank yet"):
        _ = second.bank
    second.load_state_dict(first.state_dict(), now=False)
    second.start(network())
    assert second.bank.num_steps == 1
    assert second.tracker.best("loss").average == "ema-0.9"
    second.observe(1, {"live": {"loss": 0.1}})  # a resumed run validates once more
    assert len(second.tracker.history) == 2
    third = CallbackSession(Settings([0.9], every=1))
    third.load_state_dict(first.state_dict(), now=False)
    third.forget_loaded()
    third.start(network())
    assert third.bank.num_steps == 0
    with pytest.raises(RuntimeError, match="Nothing is tracked"):
        _ = third.tracker


def test_batch_norm_is_measured_on_as_many_batches_as_asked_for():
    model = network()
    for recalibrate, count in ((2, 16), (True, 48)):
        session = CallbackSession(Settings([0.9], every=1, recalibrate=recalibrate))
        session.start(model)
        assert session.needs_batches
        session.recalibrate(DataLoader(data(48, seed=1), batch_size=8))
        inputs = data(48, seed=1).tensors[0][:count]
        statistics = session.bank.weights(0.9, batchnorm="recomputed")["1.running_mean"]
        torch.testing.assert_close(statistics, model[0](inputs).mean(0).detach())
    plain = CallbackSession(Settings([0.9]))
    plain.start(nn.Linear(2, 1))
    assert not plain.needs_batches
    plain.check(iter([]))


def test_what_cannot_be_is_said_at_once():
    with pytest.raises(ValueError, match='finish_with="best" needs criteria'):
        Settings([0.9], finish_with="best")
    with pytest.raises(TypeError, match="bufers"):
        Settings([0.9], options={"bufers": "copy"})


def test_names_say_the_metric_then_the_average():
    assert metric_names({"live": {"loss": 1.0}, "slow": {"loss": 2.0}}) == {"loss": 1.0, "loss/slow": 2.0}
