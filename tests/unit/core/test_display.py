"""Lines of the live display; tests/integration/core/test_display.py shows them on a terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from core.display import Line, rows


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Line:
    """Return a download at 2.0 of 4.0 GB after 100 s, with 1 GB from an earlier run."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    line = Line(label="rocm.tar.gz", started=0.0)
    line.set_amount(10**9, 4 * 10**9)
    now = 100.0
    line.set_amount(2 * 10**9, 4 * 10**9)
    return line


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (
            80,
            (
                "| rocm.tar.gz                     2.00 GB of 4.00 GB, 3:20 left, 10.0"
                " MB/s, 1:40"
            ),
        ),
        (48, "| rocm.tar.gz      2.00 GB of 4.00 GB, 3:20 left"),
        (40, "| rocm.tar.gz   2.00 GB of 4.00 GB, 1:40"),
        (20, "| rocm.tar.gz   1:40"),
    ],
)
def test_line_shows_the_numbers_that_fit(download: Line, width: int, text: str) -> None:
    assert download.text(width, 100.0) == text
    assert len(text) == width


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize(
    "label", ["x" * 300, "gate\nabi\r\x1b[2J\tb", "轮子" * 40, "a", ""]
)
def test_no_row_is_longer_than_the_terminal(width: int, label: str) -> None:
    tree = Line(
        label=label,
        children=[
            Line(label=label, step=label, children=[Line(label=label)])
            for _ in range(3)
        ],
    )
    for row in rows(tree, [label], width, 24, 1e5):
        assert cell_len(row) == width
        assert row.isprintable()
