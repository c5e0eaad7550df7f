"""The benchmark of drift detection uses the product's insides; these tests say when they no longer
fit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="an installed package has no benchmarks"
)


@pytest.fixture(autouse=True)
def among_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they run: beside each other."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_both_known_steps_of_a_real_benchmark_history_are_dated_within_two_points() -> None:
    import detection_series

    series, asked, found, met = detection_series.tigerbeetle()
    assert met == "yes", (series, asked, found)


def test_series_that_are_not_there_are_said_to_be_left_out(tmp_path: Path) -> None:
    import detection_series

    assert [row[2] for row in detection_series.rows(None)[1:]] == ["not read: no --data"] * 3


def test_its_section_is_put_between_the_marks_and_nothing_else_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import detection

    page = tmp_path / "detection.md"
    page.write_text(
        "# Drift\n\n<!-- begin: detection -->\nold\n<!-- end: detection -->\n\n## After\n"
    )
    monkeypatch.setattr(detection, "PAGE", page)
    detection.put("new")
    detection.put("newer")
    text = page.read_text()
    assert (
        text.startswith("# Drift\n")
        and "newer" in text
        and "old" not in text
        and text.count("begin: detection") == 1
    )
    assert text.endswith("<!-- end: detection -->\n\n## After\n")
