"""The numbers that are stored of networks, counted again on the networks themselves."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from emabank.study.models import build_network
from emabank.study.models.operations import COUNTED, Counted, counted
from emabank.study.studies.catalogue import STUDIES, wanted
from emabank.study.studies.cost import size_of
from emabank.study.studies.scales import SCALES

Key = tuple[str, int | None, tuple[int, int, int], int]


def count(key: Key) -> Counted:
    """On the meta device: shapes and no numbers, so that the largest network takes no time."""
    network, width, image, classes = key
    with torch.device("meta"):
        model = build_network(network, classes=classes, channels=image[0], width=width).eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, *image))
    operations, odd = divmod(counter.get_total_flops(), 2)  # it counts a multiply-add as two
    assert not odd
    return Counted(operations, sum(parameter.numel() for parameter in model.parameters()))


@pytest.mark.parametrize("key", COUNTED, ids=str)
def test_the_numbers_are_those_of_the_network(key: Key):
    assert COUNTED[key] == counted(*key) == count(key)


def test_every_network_of_every_study_is_there_and_no_other():
    configs = [pair.config.completed() for scale in SCALES for pair in wanted(STUDIES.values(), scale)]
    sizes = [(config.training, size_of(config.data)) for config in configs]
    assert {(training.network, training.width, size.image, size.classes) for training, size in sizes} == set(COUNTED)


def test_what_was_not_counted_is_one_sentence():
    said = "resnet8 of width 7 for images of 1 x 8 x 8 in 10 classes"
    with pytest.raises(ValueError, match=f"^no operations are known of {said}; count them into COUNTED$"):
        counted("resnet8", 7, (1, 8, 8), 10)
