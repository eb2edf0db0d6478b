"""Imports go down only, and each outside library has its home (docs/architecture.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kvsim"

# Anyone may import these.
LEAF_MODULES = {"addresses", "compiled", "errors", "files", "prefetch", "rules", "tokens"}

BELOW = {
    "cache": set(),
    "gpu": set(),
    "workload": set(),
    "results": set(),
    "engine": {"cache", "gpu"},
    "cluster": {"cache", "engine"},
    "sim": {"cluster", "engine", "workload", "results", "cache", "gpu"},
}
BELOW["scenario"] = BELOW["sim"] | {"sim"}
BELOW["calibrate"] = {"gpu"}
BELOW["validate"] = BELOW["scenario"] | {"scenario"}
BELOW["plots"] = BELOW["scenario"] | {"scenario", "calibrate", "validate"}
BELOW["sweep"] = BELOW["report"] = BELOW["plots"] | {"plots"}
BELOW["verify"] = {"engine", "cache", "gpu", "workload"}
BELOW["report"] = BELOW["sweep"] | {"sweep"}
BELOW["cli"] = BELOW["sweep"] | {"sweep", "report", "verify", "calibrate"}

# A result offers its pictures, a scenario its sweeps; both are loaded when they are asked for.
UPWARD = {("results/result.py", "plots"), ("scenario/schema.py", "sweep")}

# library -> files that may import it, as patterns below the package
HOMES = {
    "simpy": ("sim/*",),
    "torch": ("calibrate/measure/*", "calibrate/measure/operations/*"),
    "typer": ("cli/*",),
    "rich": ("cli/*", "report/*", "sweep/progress*"),
    "matplotlib": ("plots/*",),
    "pydantic": ("scenario/*", "gpu/cost/calibration*", "validate/scenarios*"),
    "scipy": ("calibrate/*",),
    "ruamel": ("scenario/*",),
    "pandas": ("calibrate/*", "cli/validate*", "results/*", "plots/*", "report/*", "sweep/*", "validate/*"),
    "pyarrow": ("results/*", "sweep/*", "calibrate/measure/*", "calibrate/tables*"),
    "loky": ("sweep/*",),
    "ray": ("sweep/*",),
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every absolute import; relative ones are made absolute."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            if module == "kvsim":
                yield from ((node.lineno, f"kvsim.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, ".relative"


def violations(path: Path) -> Iterator[str]:
    relative = path.relative_to(PACKAGE)
    unit = relative.parts[0].removesuffix(".py")
    for line, name in imports(path):
        first, *rest = name.split(".")
        where = f"kvsim/{relative}:{line}"
        if name == ".relative":
            yield f"{where} uses a relative import; write the package out"
        elif first in HOMES and not any(relative.match(pattern) for pattern in HOMES[first]):
            yield f"{where} imports {name}, which only {', '.join(HOMES[first])} may"
        elif first == "kvsim" and rest and unit != "__init__":
            target = rest[0]
            upward = (relative.as_posix(), target) in UPWARD
            if target not in LEAF_MODULES | {unit} | allowed(unit) and not upward:
                yield f"{where} imports {name}, which {unit} may not know"


def allowed(unit: str) -> set[str]:
    return set() if unit in LEAF_MODULES else BELOW[unit]


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "data" not in path.parts)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    assert not list(violations(path))


def test_a_forbidden_import_is_named_with_file_and_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "cache").mkdir()
    path = tmp_path / "cache" / "block_pool.py"
    path.write_text("import numpy\nfrom kvsim import engine\nimport simpy\nfrom kvsim.tokens import expand\n")
    assert list(violations(path)) == [
        "kvsim/cache/block_pool.py:2 imports kvsim.engine, which cache may not know",
        "kvsim/cache/block_pool.py:3 imports simpy, which only sim/* may",
    ]


def test_importing_kvsim_is_light() -> None:
    """The names of the package are loaded on first use, so that ``kvsim --help`` is quick."""
    import subprocess
    import sys

    code = "import sys, kvsim.cli.main; print({'matplotlib', 'numba', 'pandas', 'simpy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
