"""A mean teacher: an average of the student's weights labels the unlabelled images, and the student learns from them.

`python examples/mean_teacher.py` uses the labels of only 30 digits. The teacher's decay rises over the run, as in BYOL
and DINO: from 0.9 (a half-life of 7 steps), while the student learns fast, to 0.995 (138 steps) at the end. The teacher
predicts at every step, so its batch-norm statistics are averaged with its weights, not recalibrated.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emabank import EMABank, Ramp
from emabank.study.data.digits import digits_dataset

LABELLED = 30


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def disturbed(images: Tensor) -> Tensor:
    return images + 0.2 * torch.randn_like(images)


def main(*, steps: int = 300, strength: float = 3.0) -> dict[str, float]:
    """Train with the teacher's help (without it if `strength` is 0), and return the test accuracy of both."""
    torch.manual_seed(0)
    digits = digits_dataset()
    images, labels = digits.train.images.float() / 16.0, digits.train.labels
    student = make_model()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    teacher = EMABank(student, {"teacher": Ramp(0.9, 0.995, steps=steps)})

    for step in range(steps):
        some = torch.randint(LABELLED, (32,))
        others = torch.randint(LABELLED, len(images), (96,))
        with torch.no_grad():
            wanted = teacher.call("teacher", disturbed(images[others])).softmax(1)
        logits = student(disturbed(images[torch.cat([some, others])]))
        followed = F.mse_loss(logits[32:].softmax(1), wanted, reduction="none").sum(1).mean()
        share = min(1.0, step / 100)  # do not follow a teacher that knows nothing yet
        (F.cross_entropy(logits[:32], labels[some]) + strength * share * followed).backward()
        optimizer.step()
        optimizer.zero_grad()
        teacher.update()

    tested, right = digits.test.images.float() / 16.0, digits.test.labels
    student.eval()
    with torch.no_grad():
        outputs = {"student": student(tested), "teacher": teacher.call("teacher", tested)}
    return {name: float((logits.argmax(1) == right).float().mean()) for name, logits in outputs.items()}


if __name__ == "__main__":
    for name, helped, alone in zip(("student", "teacher"), main().values(), main(strength=0.0).values(), strict=True):
        print(f"{name}: {helped:.1%} on test images with {LABELLED} labels; without following a teacher {alone:.1%}")
