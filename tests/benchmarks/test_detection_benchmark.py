"""The benchmark of drift detection uses internal modules of the product; these tests fail when they
no longer match.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="an installed package has no benchmarks"
)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts benchmarks/ on the import path, as for a script in that folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_both_known_steps_of_a_real_benchmark_history_are_dated_within_two_points() -> None:
    import detection_series

    series, required, found, met = detection_series.tigerbeetle()
    assert met == "yes", (series, required, found)


def test_missing_series_are_listed_as_not_read(tmp_path: Path) -> None:
    import detection_series

    assert [row[2] for row in detection_series.rows(None)[1:]] == ["not read: no --data"] * 3


def test_a_section_is_written_between_its_markers_and_nothing_else_is_changed(
    tmp_path: Path,
) -> None:
    import proofpage

    page = tmp_path / "detection.md"
    page.write_text(
        "# Drift\n\n<!-- begin: detection -->\nold\n<!-- end: detection -->\n\n## After\n"
    )
    proofpage.write_section("detection", ["new"], page)
    proofpage.write_section("detection", ["newer"], page)
    assert page.read_text() == (
        "# Drift\n\n<!-- begin: detection -->\nnewer\n<!-- end: detection -->\n\n## After\n"
    )
