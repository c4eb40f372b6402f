"""Linear evaluation against torch's own layers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emabank.study.predict import features_of
from emabank.study.transfer import linear_evaluation


def random_features(samples: int = 90, width: int = 6, classes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (samples,), generator=generator)
    centres = torch.randn(classes, width, generator=generator)
    features = centres[labels] + torch.randn(samples, width, generator=generator)
    return features[: samples // 2], labels[: samples // 2], features[samples // 2 :]


def by_torch(features: Tensor, labels: Tensor, test_features: Tensor, *, classes: int, seed: int) -> np.ndarray:
    """The same head by nn.Linear, autograd, torch.optim.SGD and a cosine, all in float64: 50 epochs from rate 0.01."""
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(features.shape[1], classes)
    bound = features.shape[1] ** -0.5
    for parameter in (head.weight, head.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    head = head.double()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50 * -(-len(labels) // 128))
    for _ in range(50):
        for chosen in torch.randperm(len(labels), generator=generator).split(128):
            optimizer.zero_grad()
            F.cross_entropy(head(features[chosen].double()), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        return head(test_features.double()).numpy()


@pytest.mark.parametrize(("samples", "seed"), [(90, 0), (600, 3)])  # of 300 images, the last batch is incomplete
def test_the_head_is_trained_as_by_torch_without_side_effects(samples: int, seed: int):
    parts = random_features(samples)
    before, state = [part.clone() for part in parts], torch.get_rng_state()
    logits = linear_evaluation(*parts, classes=3, seed=seed)
    assert torch.equal(torch.get_rng_state(), state) and torch.is_grad_enabled()
    assert all(torch.equal(now, then) for now, then in zip(parts, before, strict=True))
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, by_torch(*parts, classes=3, seed=seed), rtol=1e-3, atol=1e-5)
    assert np.array_equal(logits, linear_evaluation(*parts, classes=3, seed=seed))
    assert not np.array_equal(logits, linear_evaluation(*parts, classes=3, seed=seed + 1))


def test_nonfinite_features_are_refused():
    features, labels, test = random_features()
    with pytest.raises(ValueError, match="features must be finite; got NaN or infinity"):
        linear_evaluation(features, labels, test * float("nan"), classes=3, seed=0)


# Features ------------------------------------------------------------------------------------------------------------


class Backbone(nn.Module):
    """Layers that differ between training and eval mode, one of them frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.head = nn.Linear(5, 2)
        self.body[0].weight.requires_grad_(False)
        self.train()
        self.body[1].eval()

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_features_are_computed_in_eval_mode_and_in_order():
    model, inputs = Backbone(), torch.randn(10, 4)
    features = features_of(model, [(inputs[:7], None), (inputs[7:], None)])
    normalised = F.linear(inputs, model.body[0].weight, model.body[0].bias) / (1 + 1e-5) ** 0.5  # fresh statistics
    torch.testing.assert_close(features, normalised.detach())
    assert not features.requires_grad


def test_models_and_data_without_features_are_refused():
    with pytest.raises(ValueError, match=r"^Linear has no features\(x\); give it a method"):
        features_of(nn.Linear(4, 2), [(torch.randn(2, 4), None)])
    with pytest.raises(ValueError, match="^there are no batches"):
        features_of(Backbone(), [])
    spatial = nn.Module()
    spatial.features = nn.Identity()
    with pytest.raises(ValueError, match=r"^the features of Module have the shape \(2, 3, 8, 8\)"):
        features_of(spatial, [(torch.randn(2, 3, 8, 8), None)])
