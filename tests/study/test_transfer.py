"""Linear evaluation: the hand-written head against torch's own layers, and everything else left as it was."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

from emabank.study.data.digits import digits_dataset
from emabank.study.data.images import normalisation_of
from emabank.study.data.loader import batches
from emabank.study.models.resnet import resnet8
from emabank.study.predict import features_of
from emabank.study.transfer import _Head, linear_evaluation


def made_up(samples: int = 90, width: int = 6, classes: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    centres = torch.randn(classes, width, generator=generator)
    features = centres[labels] + torch.randn(samples, width, generator=generator)
    return features[: samples // 2], labels[: samples // 2], features[samples // 2 :], labels[samples // 2 :]


def by_torch(features, labels, test_features, *, classes, epochs, batch, rate, momentum, seed):
    """The same head by nn.Linear, autograd, torch.optim.SGD and LambdaLR, all in float64."""
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(features.shape[1], classes)
    bound = features.shape[1] ** -0.5
    for parameter in (head.weight, head.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    head = head.double()
    optimizer = torch.optim.SGD(head.parameters(), lr=rate, momentum=momentum, nesterov=True)
    steps = epochs * -(-len(labels) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels), generator=generator).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(head(features[chosen].double()), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        return head(test_features.double()).numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 5, "batch": 128, "rate": 0.01, "momentum": 0.9, "seed": 0},
        {"epochs": 7, "batch": 8, "rate": 0.3, "momentum": 0.9, "seed": 3},  # the last batch is a part of one
        {"epochs": 1, "batch": 1, "rate": 0.01, "momentum": 0.5, "seed": 1},
    ],
)
def test_the_head_is_trained_as_torch_would(settings):
    train, labels, test, test_labels = made_up()
    transferred = linear_evaluation(train, labels, test, test_labels, classes=3, **settings)
    expected = by_torch(train, labels, test, classes=3, **settings)
    assert transferred.logits.dtype == np.float32
    np.testing.assert_allclose(transferred.logits, expected, rtol=1e-3, atol=1e-5)
    assert transferred.accuracy == np.mean(expected.argmax(axis=1) == test_labels.numpy())


def test_the_defaults_are_the_methods():
    train, labels, test, test_labels = made_up(samples=300)
    written_out = {"epochs": 50, "batch": 128, "rate": 0.01, "momentum": 0.9, "seed": 0}
    plain = linear_evaluation(train, labels, test, test_labels, classes=3)
    assert np.array_equal(
        plain.logits, linear_evaluation(train, labels, test, test_labels, classes=3, **written_out).logits
    )


def test_the_head_begins_as_a_linear_layer_does():
    head = _Head(400, 50, device=torch.device("cpu"), momentum=0.9, seed=0)
    layer = nn.Linear(400, 50)
    assert (head.weight.shape, head.bias.shape) == (layer.weight.shape, layer.bias.shape)
    assert head.weight.abs().max() <= 1 / 20 and head.bias.abs().max() <= 1 / 20
    assert head.weight.std().item() == pytest.approx(layer.weight.std().item(), rel=0.05)


def test_it_learns_what_logistic_regression_learns():
    train, labels, test, test_labels = made_up(samples=1200, width=5, classes=4)
    oracle = LogisticRegression(C=np.inf).fit(train.numpy(), labels.numpy())
    transferred = linear_evaluation(train, labels, test, test_labels, classes=4, rate=0.3, epochs=60)
    assert transferred.accuracy == pytest.approx(oracle.score(test.numpy(), test_labels.numpy()), abs=0.01)
    probabilities = torch.from_numpy(transferred.logits).softmax(dim=1).numpy()
    np.testing.assert_allclose(probabilities, oracle.predict_proba(test.numpy()), atol=0.05)


def test_the_same_seed_gives_the_same_head_and_another_seed_another():
    parts = made_up()
    torch.manual_seed(1)
    first = linear_evaluation(*parts, classes=3, epochs=3)
    torch.manual_seed(2)
    assert np.array_equal(first.logits, linear_evaluation(*parts, classes=3, epochs=3).logits)
    assert not np.array_equal(first.logits, linear_evaluation(*parts, classes=3, epochs=3, seed=1).logits)


def test_training_leaves_the_world_as_it_was():
    parts = made_up()
    before, threads = [part.clone() for part in parts], torch.get_num_threads()
    state = torch.get_rng_state()
    with torch.inference_mode():
        inside = linear_evaluation(*parts, classes=3, epochs=2, threads=2)
    parts[0].requires_grad_()
    outside = linear_evaluation(*parts, classes=3, epochs=2)
    assert torch.is_grad_enabled()
    assert np.array_equal(inside.logits, outside.logits), "whether gradients are on is the caller's affair"
    assert parts[0].grad is None
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(now, then) for now, then in zip(parts, before, strict=True))


def test_the_number_of_threads_is_set_meanwhile_and_restored_after_a_failure(monkeypatch):
    seen = []

    def fail(self, *arguments, **settings):
        seen.append(torch.get_num_threads())
        raise RuntimeError("stopped")

    monkeypatch.setattr(_Head, "train", fail)
    threads = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="stopped"):
        linear_evaluation(*made_up(), classes=3, threads=threads + 1)
    assert seen == [threads + 1]
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_of_any_whole_type_will_do(dtype):
    train, labels, test, test_labels = made_up()
    usual = linear_evaluation(train, labels, test, test_labels, classes=3, epochs=2)
    other = linear_evaluation(train, labels.to(dtype), test, test_labels.to(dtype), classes=3, epochs=2)
    assert np.array_equal(usual.logits, other.logits) and usual.accuracy == other.accuracy


def change(index: int, value):
    return lambda parts: [value(part) if i == index else part for i, part in enumerate(parts)]


@pytest.mark.parametrize(
    ("changed", "settings", "said"),
    [
        (list, {"classes": 0}, "classes is 0; give 1 or more"),
        (list, {"epochs": 0}, "epochs is 0"),
        (list, {"batch": 0}, "batch is 0"),
        (list, {"threads": 0}, "threads is 0"),
        (list, {"rate": 0.0}, "rate is 0.0; give a finite number above 0"),
        (list, {"rate": float("nan")}, "rate is nan"),
        (list, {"momentum": 1.0}, "momentum is 1.0"),
        (list, {"classes": 2}, "train labels go from 0 to 2; with 2 classes give 0 to 1"),
        (change(0, lambda x: x[:, 0]), {}, r"train features have the shape \(45,\); give \[samples, width\]"),
        (change(0, lambda x: x[:0]), {}, r"train features have the shape \(0, 6\)"),
        (
            change(2, lambda x: x[:, :5]),
            {},
            "train features are 6 wide and test features 5; give features of one model",
        ),
        (change(1, lambda y: y[:3]), {}, r"train labels are torch.int64 of the shape \(3,\); give one whole number"),
        (change(3, lambda y: y.float()), {}, "test labels are torch.float32"),
        (change(3, lambda y: y - 1), {}, "test labels go from -1 to 1"),
        (change(2, lambda x: x * float("nan")), {}, "test features hold NaN or infinity"),
    ],
)
def test_what_cannot_be_is_refused(changed, settings, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        linear_evaluation(*changed(made_up()), **{"classes": 3} | settings)


class Backbone(nn.Module):
    """Everything that differs between training and eval mode, one part frozen on its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.head = nn.Linear(5, 2)
        self.body[0].weight.requires_grad_(False)
        self.train()
        self.body[1].eval()

    def features(self, x):
        return self.body(x)


def test_features_are_those_of_eval_mode_batch_by_batch_in_order():
    model, inputs = Backbone(), torch.randn(10, 4)
    features = features_of(model, [(inputs[:7], None), (inputs[7:], None)])
    normalised = F.linear(inputs, model.body[0].weight, model.body[0].bias) / (1 + 1e-5) ** 0.5  # fresh statistics
    torch.testing.assert_close(features, normalised.detach())
    assert not features.requires_grad


def test_computing_features_leaves_the_model_and_the_random_numbers_as_they_were():
    model = Backbone()
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(9, 4), torch.zeros(9)), batch_size=4
    )
    state = torch.get_rng_state()
    features_of(model, loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert modes == [module.training for module in model.modules()] and not all(modes) and any(modes)
    assert flags == [parameter.requires_grad for parameter in model.parameters()]
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    iter(loader)
    assert not torch.equal(torch.get_rng_state(), state), "control: a loader does draw from the global generator"


def test_modes_are_restored_when_the_data_fails():
    def batches():
        yield torch.randn(2, 4), None
        raise OSError("the disk is gone")

    model = Backbone()
    modes = [module.training for module in model.modules()]
    with pytest.raises(OSError, match="the disk is gone"):
        features_of(model, batches())
    assert modes == [module.training for module in model.modules()]
    assert torch.is_grad_enabled()


def test_models_and_data_that_give_no_features_are_refused():
    with pytest.raises(ValueError, match=r"^Linear has no features\(x\); give it a method"):
        features_of(nn.Linear(4, 2), [(torch.randn(2, 4), None)])
    with pytest.raises(ValueError, match="^there are no batches"):
        features_of(Backbone(), [])
    spatial = nn.Module()
    spatial.features = nn.Identity()
    with pytest.raises(
        ValueError, match=r"^the features of Module have the shape \(2, 3, 8, 8\); its features\(x\) must"
    ):
        features_of(spatial, [(torch.randn(2, 3, 8, 8), None)])


def test_features_in_half_precision_become_float32():
    spatial = nn.Module()
    spatial.features = nn.Flatten()
    assert features_of(spatial, [(torch.zeros(2, 3, dtype=torch.bfloat16), None)]).dtype == torch.float32


def test_a_network_of_the_study_transfers_to_digits():
    digits = digits_dataset()
    scale = normalisation_of(digits.train)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = resnet8(classes=5, channels=1, width=8)  # not even trained: its features still tell digits apart
    train, test = (
        features_of(model, batches(part, size=500, normalisation=scale)) for part in (digits.train, digits.test)
    )
    assert train.shape == (1297, 32)
    transferred = linear_evaluation(train, digits.train.labels, test, digits.test.labels, classes=10, threads=1)
    expected = by_torch(
        train, digits.train.labels, test, classes=10, epochs=50, batch=128, rate=0.01, momentum=0.9, seed=0
    )
    np.testing.assert_allclose(transferred.logits, expected, rtol=1e-3, atol=1e-4)
    assert transferred.accuracy > 0.2, "twice as good as chance"
