"""The example of a mean teacher: the average is asked inside the loop, and following it helps."""

import runpy
from pathlib import Path

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "mean_teacher.py"))


def test_following_the_teacher_helps():
    helped, alone = EXAMPLE["main"](), EXAMPLE["main"](strength=0.0)
    assert set(helped) == {"student", "teacher"}
    assert helped["teacher"] > alone["student"]
