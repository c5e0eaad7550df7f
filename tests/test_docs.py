"""The documentation says what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from monitor.cli import COMMANDS
from monitor.model import SAMPLE_FIELDS, Kind, Outcome

ROOT = Path(__file__).resolve().parent.parent


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


def test_the_reference_pages_are_what_the_code_makes_of_itself() -> None:
    for name, text in generated().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, (
            f"docs/{name} is out of date: make docs"
        )


def test_every_field_of_a_sample_is_explained() -> None:
    page = (ROOT / "docs" / "units.md").read_text(encoding="utf-8")
    assert [name for name in SAMPLE_FIELDS if f"`{name}`" not in page] == []


def test_every_outcome_is_explained() -> None:
    page = (ROOT / "docs" / "units.md").read_text(encoding="utf-8")
    assert [o.value for o in Outcome if f"| `{o.value}` |" not in page] == []


def test_every_kind_that_the_judges_can_find_is_explained() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "monitor" / "judge").rglob("*.py")
    )
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    found = {Kind[name] for name in re.findall(r"Kind\.([A-Z_]+)", sources)}
    assert found, "the judges name no kind: this test searches the wrong place"
    assert [kind.value for kind in found if f"`{kind.value}`" not in page] == []


def test_every_command_on_a_page_exists() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    typed = {
        word
        for page in pages
        for word in re.findall(r"vllm-canary ([a-z]+)\b", page.read_text(encoding="utf-8"))
    }
    assert typed - set(COMMANDS) - {"writes", "run", "has", "is", "and"} == set()


def test_no_page_links_to_a_missing_file() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} points to {link}"
