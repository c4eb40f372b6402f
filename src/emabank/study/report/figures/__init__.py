"""The paper's figures, and some of our own: panels made from evidence, then drawn as PNG and SVG. No torch.

Rooms named after a study build panels; `draw.py` alone, with `axes.py` and `style.py`, knows matplotlib.
"""
