"""VGG-16 is the one of the SWA authors; VGG-small passes its signal on, learns, and memorises."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from emabank.study.models.vgg import vgg16, vgg_small

# The authors' own list (timgaripov/swa, models/vgg.py); M is max-pooling.
PUBLISHED = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]


def test_the_layers_are_the_published_ones():
    with torch.device("meta"):
        model = vgg16(classes=10)
    layers = [layer for stage in model.stages for layer in stage]
    told = [getattr(layer, "out_channels", "M") for layer in layers if not isinstance(layer, nn.ReLU)]
    assert told == PUBLISHED
    assert all(isinstance(after, nn.ReLU) for at, after in pairwise(layers) if hasattr(at, "bias"))
    kinds = [nn.Dropout, nn.Linear, nn.ReLU] * 2
    assert [type(layer) for layer in model.hidden] == kinds
    assert all(layer.p == 0.5 for layer in model.hidden if isinstance(layer, nn.Dropout))


def test_convolutions_begin_as_published():
    model = vgg16(classes=10)
    for convolution in (m for m in model.modules() if isinstance(m, nn.Conv2d) and m.in_channels > 3):
        assert convolution.weight.std().item() == pytest.approx((2 / (9 * convolution.out_channels)) ** 0.5, rel=0.02)
        assert not convolution.bias.any()


def test_on_32_pixels_it_is_the_authors_network():
    model = vgg16(classes=10).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        theirs = nn.Sequential(model.stages, nn.Flatten(), model.hidden, model.head)(x)  # no pooling to one pixel
        assert torch.equal(model(x), theirs)


def test_dropout_changes_the_features_in_training():
    model = vgg16(classes=10, channels=1)
    images = torch.randn(1, 1, 32, 32)
    with torch.no_grad():
        assert not torch.equal(model.features(images), model.features(images))


@pytest.mark.parametrize(("channels", "size", "width"), [(1, 8, 16), (3, 32, 16), (1, 8, 64)])
def test_vgg_small_passes_its_signal_on(channels, size, width):
    torch.manual_seed(0)
    model = vgg_small(classes=10, channels=channels, width=width)
    sizes = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _module, _given, out: sizes.append(out.square().mean().sqrt().item()))
    with torch.no_grad():
        model(torch.randn(16, channels, size, size))
    # Zeros of the padding take some away, max-pooling adds some: without them each would be sqrt(2).
    assert len(sizes) == 6 and all(0.5 < value < 5 for value in sizes), sizes


def test_vgg_small_memorises():
    torch.manual_seed(0)
    model = vgg_small(classes=10, channels=1, width=8)
    images, labels = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert (model(images).argmax(dim=1) == labels).all()
