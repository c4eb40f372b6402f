"""LoRA with the real peft: only the weights of the LoRA layers are averaged, and peft loads the averages."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emabank import EMABank
from tests.support.models import copies
from tests.support.oracle import assert_equal, ema
from tests.support.trainers import AVERAGES, training_arguments

peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")

from emabank.integrations.transformers import EMABankCallback  # noqa: E402

TOKENS = [(torch.arange(8) * stride) % 11 for stride in range(1, 11)]


def make_base() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=11, max_position_embeddings=16, **sizes))


def make_adapted() -> Any:
    torch.manual_seed(1)
    return peft.get_peft_model(make_base(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


def adapter_of(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in weights.items() if "lora_" in key}


def test_only_the_adapter_is_averaged_and_peft_loads_the_averages(tmp_path: Path):
    model = make_adapted()
    bank = EMABank(model, AVERAGES, every=1, parameters="trainable")
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1.0)
    first, seen = copies(model), []
    for tokens in TOKENS[:6]:
        model(input_ids=tokens[None], labels=tokens[None]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        bank.update()
        seen.append(copies(model))
    for name, rule in AVERAGES.items():
        averaged = bank.state_dict()["averages"][name]["tensors"]
        assert averaged.keys() == adapter_of(first).keys()
        for key, tensor in averaged.items():
            expected = ema(first[key], [weights[key] for weights in seen], rule.decay)
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6)
        model.save_pretrained(tmp_path / name, state_dict=bank.weights(name))
        loaded = peft.PeftModel.from_pretrained(make_base(), tmp_path / name)
        assert_equal(copies(loaded), bank.weights(name))
        inputs = torch.stack(TOKENS)
        with torch.no_grad():
            logits = loaded.eval()(input_ids=inputs).logits
            torch.testing.assert_close(bank.call(name, input_ids=inputs).logits, logits)
        assert not torch.equal(adapter_of(copies(loaded))[key], seen[-1][key])


def train(folder: Path, resume: Path | None = None, **options: Any) -> tuple[Any, EMABankCallback]:
    samples = [{"input_ids": tokens, "labels": tokens} for tokens in TOKENS]
    best = {"metric_for_best_model": "eval_loss/slow", "greater_is_better": False}
    arguments = training_arguments(folder, learning_rate=1.0, **best, **options)
    trainer = transformers.Trainer(make_adapted(), arguments, train_dataset=4 * samples, eval_dataset=samples)
    callback = EMABankCallback(trainer, AVERAGES, every=1, parameters="trainable", snapshots="each")
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer, callback


def test_the_best_checkpoint_contains_the_average_and_resumes_the_live_adapter(tmp_path: Path):
    trainer, callback = train(tmp_path, load_best_model_at_end=True)
    best = callback.tracker.best("eval_loss", "slow")
    assert trainer.state.best_metric == best.value
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best.value, rel=1e-5)
    loaded = peft.PeftModel.from_pretrained(make_base(), trainer.state.best_model_checkpoint)
    assert_equal(adapter_of(copies(loaded)), adapter_of(callback.tracker.weights("eval_loss", "slow")))
    uninterrupted, _ = train(tmp_path / "uninterrupted")
    resumed, _ = train(tmp_path / "uninterrupted", tmp_path / "uninterrupted" / "checkpoint-4")
    assert_equal(copies(resumed.model), copies(uninterrupted.model))
