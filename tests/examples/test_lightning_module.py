"""The example of a Lightning module: it runs as it stands, and what it saves is as good as it says."""

import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning", reason="lightning is not installed: pip install emabank[lightning]")
EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_module.py"


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`")  # inside Lightning
def test_it_saves_the_weights_it_advises_to_ship(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = runpy.run_path(str(EXAMPLE))
    out = tmp_path / "best.pt"
    example["main"](str(out), epochs=4)
    said = capsys.readouterr().out
    assert "Ship ema-" in said or "Ship live" in said
    module = example["Digits"]()
    module.load_state_dict(torch.load(out, weights_only=True))
    tested = example["digits_dataset"]().test
    with torch.no_grad():
        accuracy = float((module.eval()(tested.images.float() / 16.0).argmax(1) == tested.labels).float().mean())
    assert f"{100 * accuracy:.2f} %" in said
    assert " of step " in said
