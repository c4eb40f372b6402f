"""The callback with real Hugging Face Trainers: averages as computed by hand, and training unchanged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.support.models import copies
from tests.support.oracle import assert_equal, ema
from tests.support.trainers import AVERAGES, training_arguments

transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
pytest.importorskip("accelerate", reason="the extra transformers is not installed")

from transformers import (  # noqa: E402
    EarlyStoppingCallback,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
)

from emabank.integrations.transformers import EMABankCallback  # noqa: E402

STATISTICS = "resnet.embedder.embedder.normalization.running_mean"
WEIGHT = "resnet.embedder.embedder.convolution.weight"


def images(count: int, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 1, 8, 8, generator=generator)
    labels = (pixels.mean((1, 2, 3)) > 0).long()
    return [{"pixel_values": image, "labels": label} for image, label in zip(pixels, labels, strict=True)]


TRAINING, VALIDATION = images(48, seed=1), images(20, seed=2)


def network() -> ResNetForImageClassification:
    torch.manual_seed(5)
    config = ResNetConfig(
        num_channels=1, embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic", num_labels=2
    )
    return ResNetForImageClassification(config)


class Recorder(TrainerCallback):
    """Records the weights and the random state after each step."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.random: list[Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        self.weights.append(copies(keywords["model"]))
        self.random.append(torch.get_rng_state())


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def make_trainer(
    folder: Path, *callbacks: Any, evaluated: Any = VALIDATION, kind: type[Trainer] = Trainer, **keywords: Any
) -> Trainer:
    sizes = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "learning_rate": 0.05}
    options = {"save_strategy": "no", "logging_steps": 4, "seed": 3, **sizes, **keywords}
    arguments = training_arguments(folder, **options)
    return kind(
        network(),
        arguments,
        train_dataset=TRAINING,
        eval_dataset=evaluated,
        compute_metrics=accuracy,
        callbacks=list(callbacks),
    )


def add_bank(trainer: Trainer, **keywords: Any) -> EMABankCallback:
    criteria: Any = {"eval_loss": "min", "eval_accuracy": "max"}
    callback = EMABankCallback(trainer, AVERAGES, **{"every": 1, "criteria": criteria, **keywords})
    trainer.add_callback(callback)
    return callback


def loss_of(model: nn.Module, samples: list[dict[str, Tensor]]) -> float:
    with torch.no_grad():
        logits = model.eval()(torch.stack([sample["pixel_values"] for sample in samples])).logits
    return cross_entropy(logits, torch.stack([sample["labels"] for sample in samples])).item()


def logged_values(trainer: Trainer, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if key in row]


# Averages and training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_averages_and_metrics_equal_those_computed_by_hand(tmp_path: Path, accumulate: int):
    recorder = Recorder()
    trainer = make_trainer(tmp_path, recorder, gradient_accumulation_steps=accumulate)
    callback = add_bank(trainer, recalibrate=True)
    first = copies(trainer.model)
    trainer.train()
    assert callback.bank.num_steps == len(recorder.weights) == 12
    for name, rule in AVERAGES.items():
        weights = callback.bank.weights(name, batchnorm="averaged")
        for key in (WEIGHT, STATISTICS, "classifier.1.bias"):
            expected = ema(first[key], [sample[key] for sample in recorder.weights], rule.decay)
            torch.testing.assert_close(weights[key].double(), expected, rtol=1e-5, atol=1e-6)
        averaged = callback.bank.module(name, batchnorm="recomputed")
        with torch.no_grad():
            seen = averaged.resnet.embedder.embedder.convolution(
                torch.stack([sample["pixel_values"] for sample in TRAINING])
            )
        torch.testing.assert_close(averaged.state_dict()[STATISTICS], seen.mean((0, 2, 3)))
        assert logged_values(trainer, f"eval_loss/{name}")[-1] == pytest.approx(loss_of(averaged, VALIDATION), rel=1e-4)
    assert logged_values(trainer, "eval_loss")[-1] == pytest.approx(loss_of(trainer.model, VALIDATION), rel=1e-4)
    assert {row.epoch for row in callback.tracker.history} == {4, 8, 12}
    assert {row.metric for row in callback.tracker.history} == {"eval_loss", "eval_accuracy"}


def test_the_five_default_averages_depend_on_the_length_of_the_run(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    callback = EMABankCallback(trainer)
    trainer.add_callback(callback)
    trainer.train()
    steps = callback.bank.num_steps
    assert steps == trainer.state.max_steps
    halves = [0.5 ** (100 / percent / steps) for percent in (0.44, 0.88, 1.8, 3.5, 7.1)]
    assert [callback.bank.decay(name) for name in callback.bank.names] == pytest.approx(halves)


def test_training_and_its_logs_are_not_changed_by_the_callback(tmp_path: Path):
    runs = []
    for with_averages in (False, True):
        recorder = Recorder()
        trainer = make_trainer(tmp_path / str(with_averages), recorder)
        if with_averages:
            add_bank(trainer)
        trainer.train()
        runs.append((recorder, trainer))
    (plain, without), (averaged_recorder, averaged) = runs
    assert_equal(averaged_recorder.weights, plain.weights)
    assert_equal(averaged_recorder.random, plain.random)
    assert_equal(copies(averaged.model), plain.weights[-1])
    for key in ("loss", "eval_loss", "eval_accuracy"):
        assert logged_values(averaged, key) == logged_values(without, key)


def test_a_compiled_model_has_the_same_averages(tmp_path: Path):
    banks = []
    for compiling in (False, True):
        backend = {"torch_compile": True, "torch_compile_backend": "eager"} if compiling else {}
        trainer = make_trainer(tmp_path, max_steps=4, **backend)
        callback = add_bank(trainer)
        trainer.train()
        banks.append(callback.bank)
    for name in AVERAGES:
        assert_equal(banks[1].weights(name), banks[0].weights(name))


def test_several_evaluation_sets_have_their_own_metrics(tmp_path: Path):
    trainer = make_trainer(tmp_path, evaluated={"one": VALIDATION[:8], "two": VALIDATION[8:]})
    callback = add_bank(trainer, criteria={"eval_two_loss": "min"})
    trainer.train()
    assert len(logged_values(trainer, "eval_one_loss/slow")) == len(logged_values(trainer, "eval_two_loss/slow")) == 3
    assert callback.tracker.best("eval_two_loss", "slow").value == min(logged_values(trainer, "eval_two_loss/slow"))


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        (None, "criteria must be metrics of one evaluation set.*got eval_loss"),
        ({"eval_one_loss": "min", "eval_two_loss": "min"}, "got eval_one_loss, eval_two_loss"),
        ({"eval_two_los": "min"}, "got none for eval_two_los"),
    ],
)
def test_criteria_that_no_single_evaluation_set_has_are_refused(tmp_path: Path, criteria: Any, message: str):
    trainer = make_trainer(tmp_path, evaluated={"one": VALIDATION[:8], "two": VALIDATION[8:]})
    add_bank(trainer, criteria=criteria)
    with pytest.raises(ValueError, match=message):
        trainer.train()


# Other callbacks, and the best weights -------------------------------------------------------------------------------


def test_the_best_checkpoint_by_the_metric_of_an_average_contains_it(tmp_path: Path):
    early = EarlyStoppingCallback(early_stopping_patience=2)
    saving = {"metric_for_best_model": "eval_loss/slow", "greater_is_better": False, "load_best_model_at_end": True}
    saving |= {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 3}
    trainer = make_trainer(tmp_path, early, **saving, max_steps=200)
    callback = add_bank(trainer, snapshots="each")
    trainer.train()
    assert trainer.state.global_step < 200
    best = callback.tracker.best("eval_loss", "slow")
    assert trainer.state.best_metric == min(logged_values(trainer, "eval_loss/slow")) == best.value
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best.value, rel=1e-5)
    loaded = ResNetForImageClassification.from_pretrained(tmp_path / f"checkpoint-{best.epoch}")
    for model in (trainer.model, loaded):
        assert_equal(copies(model), callback.tracker.weights("eval_loss", "slow"))


def test_the_averages_are_in_the_checkpoints_of_a_trial(tmp_path: Path):
    class InSearch(Trainer):
        def _get_output_dir(self, trial: Any) -> str:  # as a hyperparameter search has it
            return str(tmp_path / "run-0")

    saving = {"metric_for_best_model": "eval_loss/slow", "greater_is_better": False, "load_best_model_at_end": True}
    trainer = make_trainer(tmp_path, kind=InSearch, save_strategy="steps", save_steps=4, **saving)
    callback = add_bank(trainer, snapshots="each")
    trainer.train()
    assert_equal(copies(trainer.model), callback.tracker.weights("eval_loss", "slow"))
    assert {path.parent.parent.name for path in tmp_path.rglob("emabank.pt")} == {"run-0"}


@pytest.mark.parametrize("finish_with", ["best", "slow"])
def test_finish_with_sets_the_final_weights(tmp_path: Path, finish_with: str):
    trainer = make_trainer(tmp_path)
    callback = add_bank(trainer, finish_with=finish_with)
    trainer.train()
    expected = callback.best_weights() if finish_with == "best" else callback.bank.weights("slow")
    assert_equal(copies(trainer.model), expected)


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [None, "slow"])  # the checkpoint contains the live weights, or an average
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, average: str | None):
    saving = {"metric_for_best_model": f"eval_loss/{average}"} if average else {}
    uninterrupted = make_trainer(tmp_path, save_strategy="steps", save_steps=4, **saving)
    one = add_bank(uninterrupted)
    uninterrupted.train()
    saved = ResNetForImageClassification.from_pretrained(tmp_path / "checkpoint-4")  # the best so far at step 4
    logged = logged_values(uninterrupted, f"eval_loss/{average}" if average else "eval_loss")
    assert loss_of(saved, VALIDATION) == pytest.approx(logged[0], rel=1e-5)
    resumed = make_trainer(tmp_path)
    other = add_bank(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert_equal(copies(resumed.model), copies(uninterrupted.model))
    restarted = make_trainer(tmp_path)
    new = add_bank(restarted, resume_from=False)  # new averages, yet the live weights
    restarted.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert_equal(copies(restarted.model), copies(uninterrupted.model))
    assert new.bank.num_steps == 8
    assert other.bank.num_steps == one.bank.num_steps == 12
    for name in AVERAGES:
        assert_equal(other.bank.weights(name), one.bank.weights(name))
    assert other.tracker.history == one.tracker.history
    assert_equal(other.best_weights(), one.best_weights())


@pytest.mark.filterwarnings("ignore:.*steps")
def test_a_run_that_is_extended_keeps_the_half_lives_of_its_first_plan(tmp_path: Path):
    callbacks = []
    for steps in (8, 12):
        trainer = make_trainer(tmp_path, max_steps=steps, save_strategy="steps", save_steps=8)
        callbacks.append(EMABankCallback(trainer))  # half-lives are shares of the run
        trainer.add_callback(callbacks[-1])
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8") if steps > 8 else None)
    first, longer = (callback.bank for callback in callbacks)
    assert (first.num_steps, longer.num_steps) == (8, 12)
    assert [longer.decay(name) for name in longer.names] == [first.decay(name) for name in first.names]


def test_a_checkpoint_without_averages_is_refused_unless_resume_from_is_false(tmp_path: Path):
    plain = make_trainer(tmp_path, save_strategy="steps", save_steps=8)
    plain.train()
    resumed = make_trainer(tmp_path)
    add_bank(resumed)
    with pytest.raises(FileNotFoundError, match=r"no emabank.pt in .*checkpoint-8.*resume_from="):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    restarted = make_trainer(tmp_path)
    callback = add_bank(restarted, resume_from=False)
    restarted.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert callback.bank.num_steps == 4


# Errors, and outside of training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_while_an_average_is_evaluated_restores_everything(tmp_path: Path, error: type[BaseException]):
    class Failing(Trainer):
        calls = 0

        def prediction_step(self, model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            if self.calls == 3 + 3 + 2:  # the live weights, the first average, and in the second
                self.applied = copies(model)
                raise error("now")
            return super().prediction_step(model, *arguments, **keywords)

    recorder = Recorder()
    trainer = make_trainer(tmp_path, recorder, kind=Failing)
    callback = add_bank(trainer)
    with pytest.raises(error):
        trainer.train()
    assert not torch.equal(trainer.applied[WEIGHT], recorder.weights[-1][WEIGHT]), "no average was applied"
    assert_equal(copies(trainer.model), recorder.weights[-1])
    assert callback in trainer.callback_handler.callbacks and recorder in trainer.callback_handler.callbacks
    callback.bank.state_dict()  # would raise if an average were applied


def test_the_callback_of_another_trainer_is_refused(tmp_path: Path):
    other, trainer = make_trainer(tmp_path), make_trainer(tmp_path)
    trainer.add_callback(add_bank(other))
    with pytest.raises(RuntimeError, match="trainer must be the Trainer that trains"):
        trainer.train()


def test_the_callback_does_nothing_outside_of_training(tmp_path: Path):
    trainer = make_trainer(tmp_path, eval_on_start=True)
    callback = add_bank(trainer)
    trainer.train()
    assert {row.epoch for row in callback.tracker.history} == {4, 8, 12}  # without the evaluation at step 0
    before, rows = copies(trainer.model), len(trainer.state.log_history)
    metrics = trainer.evaluate()
    trainer.predict(VALIDATION)
    assert not any("/" in key for key in metrics)
    assert len(trainer.state.log_history) == rows + 1
    assert_equal(copies(trainer.model), before)
