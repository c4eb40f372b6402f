"""The cost of averages at sizes that we cannot run: memory, traffic and time per update, computed from stated rates.

`python benchmarks/sizing.py` prints the table of docs/cluster.md. Nothing is measured.
"""

from __future__ import annotations

DEVICE_MEMORY = 3e12  # bytes per second of an accelerator's memory (H100 class)
LINK = 25e9  # bytes per second from a device to its host
HOST_MEMORY = 50e9  # bytes per second of main memory, per device
TOKENS = 4e6  # per optimizer step, over all devices
RATE = 1.6e14  # operations per second that a device achieves in training
AVERAGES = 5
LIVE = 2  # bytes of a live weight (bf16); an average has 4
FETCHED = 4  # bytes of a live weight on the link: an asynchronous copy is converted to float32 on the device


def traffic(parameters: float, averages: int = AVERAGES) -> float:
    """Bytes that an update moves: every average is read and written, the live weights are read."""
    return (8 * averages + LIVE) * parameters


def step_seconds(parameters: float, devices: int) -> float:
    """One training step: 6 operations per parameter and token."""
    return 6 * parameters * TOKENS / (devices * RATE)


def update_seconds(parameters: float, *, offload: bool) -> float:
    """One update of the weights on a device. Offloaded, the live weights cross the link and the host averages them."""
    if offload:
        return FETCHED * parameters / LINK + (traffic(parameters) + 4 * parameters) / HOST_MEMORY
    return traffic(parameters) / DEVICE_MEMORY


def table() -> str:
    head = ("parameters", "devices", "memory of 5 averages per device", "traffic per update", "update",
            "share of a step, every step", "every 16", "offloaded: update", "every 16")  # fmt: skip
    rows = [head, ("---:",) * len(head)]
    for parameters in (1e9, 8e9, 70e9):
        for devices in (1, 64):
            own = parameters / devices
            step = step_seconds(parameters, devices)
            on_device, on_host = (update_seconds(own, offload=offload) for offload in (False, True))
            cells = [f"{parameters / 1e9:g} B", f"{devices}", _bytes(4 * AVERAGES * own), _bytes(traffic(own))]
            cells += [_seconds(on_device), _percent(on_device / step), _percent(on_device / step / 16)]
            cells += [_seconds(on_host), _percent(on_host / step / 16)]
            rows.append(tuple(cells))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count < 1e10 else f"{count / 1e9:,.0f} GB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


if __name__ == "__main__":
    print(table())
