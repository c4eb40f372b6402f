"""The session that the integrations share: a second pass over a loader in use, and states loaded before training."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from emabank.integrations._session import CallbackSession, check_reiterable, second_pass
from tests.support.models import data, network
from tests.support.processes import run


def as_lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("the data must not be copied")


class FetchedTogether(Numbers):
    __getitem__ = None

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor(index) for index in indices]


@pytest.mark.parametrize("kind", [Numbers, FetchedTogether])
def test_a_second_pass_has_the_same_batches_and_does_not_change_the_order(kind: type[Numbers]):
    dataset = kind()
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(dataset, batch_size=4, sampler=RandomSampler(dataset, generator=generator))
    state = generator.get_state()
    batches = as_lists(second_pass(loader))
    assert torch.equal(generator.get_state(), state)
    training = iter(loader)
    first = next(training)
    as_lists(second_pass(loader))
    assert [first.tolist(), *as_lists(training)] == batches
    assert sorted(index for batch in batches for index in batch) == list(range(6))


def test_a_second_pass_without_a_batch_size_or_a_data_loader():
    sampler = BatchSampler(range(5), batch_size=2, drop_last=True)
    assert as_lists(second_pass(DataLoader(Numbers(), batch_sampler=sampler))) == [[0, 1], [2, 3]]
    assert as_lists(second_pass(DataLoader(Numbers(), batch_size=None))) == list(range(6))
    assert list(second_pass([1, 2])) == [1, 2]


def test_a_loader_with_one_pass_is_refused():
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1])

    for loader in (iter([1]), None, DataLoader(Stream())):
        with pytest.raises(ValueError, match="recalibrate_on="):
            check_reiterable(loader)


def session(**keywords: Any) -> CallbackSession:
    return CallbackSession([0.9], **{"every": 1, **keywords})


def test_a_state_loaded_before_training_is_used_when_training_starts():
    first, second = (session(recalibrate=False) for _ in range(2))
    first.start(network())
    first.bank.update()
    first.observe(1, {"live": {"loss": 1.0}, "ema-0.9": {"loss": 0.5}})
    assert second.state_dict() == {}
    with pytest.raises(RuntimeError, match="no bank yet"):
        _ = second.bank
    second.load_state_dict(first.state_dict())
    second.start(network())
    assert second.bank.num_steps == 1
    assert second.tracker.best("loss").average == "ema-0.9"
    second.observe(1, {"live": {"loss": 0.1}})  # a resumed run validates again
    assert len(second.tracker.history) == 2


def test_without_criteria_nothing_is_tracked():
    untracked = session(recalibrate=False, criteria={})
    untracked.start(network())
    untracked.observe(1, {"live": {"loss": 1.0}})
    with pytest.raises(RuntimeError, match="criteria"):
        _ = untracked.tracker


def test_finishing_with_an_unknown_average_is_refused_when_training_starts():
    with pytest.raises(KeyError, match=r"0\.8.*ema-0\.9"):
        session(finish_with=0.8).start(network())
    session(finish_with=0.9).start(network())


def test_finishing_with_the_best_warns_if_there_was_no_complete_validation():
    model, finishing = network(), session(recalibrate=False, finish_with="best")
    finishing.start(model)
    finishing.observe(1, {"live": {"loss": 1.0}}, complete=False)
    with pytest.warns(UserWarning, match="no complete validation"):
        finishing.finish(model)
    finishing.observe(2, {"live": {"loss": 1.0}})
    finishing.finish(model)


def test_batch_norm_is_recomputed_on_the_requested_number_of_batches():
    model = network()
    for recalibrate, count in ((2, 16), (True, 48)):
        recalibrating = session(recalibrate=recalibrate)
        recalibrating.start(model)
        recalibrating.recalibrate(DataLoader(data(48, seed=1), batch_size=8))
        inputs = data(48, seed=1).tensors[0][:count]
        mean = recalibrating.bank.weights(0.9, batchnorm="recomputed")["1.running_mean"]
        torch.testing.assert_close(mean, model[0](inputs).mean(0).detach())


def test_a_model_without_batch_norm_needs_no_loader():
    plain = session()
    plain.start(nn.Linear(2, 1))
    assert not plain.needs_training_loader
    plain.recalibrate(iter([]))


@pytest.mark.parametrize("wrong", [{"recalibrate": 0}, {"recalibrate": 2.5}, {"finish_with": "best", "criteria": {}}])
def test_wrong_arguments_are_refused_before_training(wrong: dict[str, Any]):
    argument, *_ = wrong
    with pytest.raises(ValueError, match=argument):
        session(**wrong)
    with pytest.raises(TypeError, match="evry"):
        session(evry=2)


def test_a_missing_framework_is_an_error_with_the_package_to_install():
    code = """
from importlib import import_module
for name in ("lightning", "transformers", "accelerate"):
    try:
        import_module(f"emabank.integrations.{name}")
    except ImportError as error:
        assert f"pip install {name}" in str(error), error
    else:
        raise AssertionError(name)
"""
    process = run(code, blocked=("lightning", "pytorch_lightning", "transformers", "accelerate"))
    assert process.returncode == 0, process.stderr
