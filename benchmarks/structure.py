"""The structure of a checkout in figures, for ARCHITECTURE.md: files, lines, imports, functions.

    python benchmarks/structure.py [CHECKOUT]

Lines are counted as they are: format two checkouts alike before comparing them
(`ruff format --line-length 100`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "monitor"
MANY_POSITIONAL = 6
SMALL_LINES = 60


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: dotted name, text, syntax tree, and imported modules of the package."""

    name: str
    text: str
    tree: ast.Module
    imports: frozenset[str]

    @property
    def lines(self) -> int:
        """The number of lines of the file."""
        return self.text.count("\n")


def read(root: Path) -> dict[str, Module]:
    """All modules of the package, by dotted name; a package's `__init__` has the package's name."""
    texts: dict[str, str] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        texts[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    found = {}
    for name, text in texts.items():
        tree = ast.parse(text)
        imports = frozenset(_imports(tree, texts)) - {name}
        found[name] = Module(name, text, tree, imports)
    return found


def _imports(tree: ast.Module, known: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                target = inner if inner in known else node.module
                if target in known:
                    yield target


def figures(modules: Mapping[str, Module], outside: str | None = None) -> dict[str, int]:
    """The figures of all modules except those whose name begins with `outside`."""
    chosen = {n: m for n, m in modules.items() if outside is None or not n.startswith(outside)}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for imported in module.imports:
            importers[imported].add(module.name)
    text = "".join(m.text for m in chosen.values())
    small = [n for n, m in chosen.items() if len(importers[n]) == 1 and m.lines < SMALL_LINES]
    return {
        "files": len(chosen),
        "lines": sum(m.lines for m in chosen.values()),
        "imports between modules": sum(len(m.imports & set(chosen)) for m in chosen.values()),
        "modules with one importer": sum(len(importers[n]) == 1 for n in chosen),
        f"of these under {SMALL_LINES} lines": len(small),
        "largest function, lines": max(_function_lines(chosen.values()), default=0),
        "functions over 40 lines": sum(n > 40 for n in _function_lines(chosen.values())),
        f"calls with more than {MANY_POSITIONAL} positional arguments": _many(chosen.values()),
        "`noqa`": len(re.findall(r"#\s*noqa", text)),
        "`Any`": sum(
            isinstance(node, ast.Name) and node.id == "Any"
            for m in chosen.values()
            for node in ast.walk(m.tree)
        ),
    }


def _function_lines(modules: Iterable[Module]) -> Iterator[int]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                yield node.end_lineno - node.lineno + 1


def _many(modules: Iterable[Module]) -> int:
    return sum(
        isinstance(node, ast.Call) and len(node.args) > MANY_POSITIONAL
        for module in modules
        for node in ast.walk(module.tree)
    )


def parts(modules: Mapping[str, Module], folder: str) -> tuple[int, int, int]:
    """Parts of a folder (its files and sub-folders), imports between them, and depth: the longest
    chain of imports. A cycle does not add to the depth.
    """

    def part(name: str) -> str | None:
        if not name.startswith(f"{folder}."):
            return None
        return name.removeprefix(f"{folder}.").partition(".")[0]

    imports = Counter(
        (a, b)
        for module in modules.values()
        for imported in module.imports
        if (a := part(module.name)) and (b := part(imported)) and a != b
    )
    every = {p for name in modules if (p := part(name))}
    below = {a: {b for x, b in imports if x == a} for a in every}

    def depth(name: str, seen: frozenset[str]) -> int:
        return 1 + max((depth(b, seen | {b}) for b in below[name] - seen), default=0)

    return len(every), len(imports), max((depth(p, frozenset({p})) for p in every), default=0)


def main(root: Path) -> None:
    """Prints the table."""
    modules = read(root)
    whole = figures(modules)
    product = figures(modules, f"{PACKAGE}.simulate")
    print("| | all | without `simulate/` |\n|---|---|---|")
    for name, value in whole.items():
        print(f"| {name} | {value} | {product[name]} |")
    for folder in (PACKAGE, f"{PACKAGE}.judge", f"{PACKAGE}.judge.drift", f"{PACKAGE}.measure"):
        print(
            f"| `{folder}`: parts, imports, depth | {', '.join(map(str, parts(modules, folder)))}"
            " | |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
