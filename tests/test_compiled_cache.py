"""The disk cache of compiled code: an edited callee is noticed, and there is always a folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim.compiled
from kvsim.compiled import ALL_SOURCES, sources_digest

PACKAGE = Path(kvsim.compiled.__file__).parent

CALLEE = """
from kvsim.compiled import compiled_part

@compiled_part
def callee(x):
    return x * 2
"""
CALLER = """
from kvsim.compiled import compiled
from kvsim.cache.callee import callee

@compiled
def caller(x):
    return callee(x) + 1
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package with a compiled function that calls another module's."""
    copy = tmp_path / "kvsim"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "cache" / "callee.py").write_text(CALLEE)
    (copy / "engine" / "caller.py").write_text(CALLER)
    return copy


def python(package, code, **environment):
    """Output of some code, run in a new process on a copy of the package."""
    variables = {"PYTHONPATH": str(package.parent), "KVSIM_CACHE_DIR": str(package.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "0", **variables, **environment},
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def call(package):
    """caller(5) in a new process, and how often machine code was loaded and compiled for it."""
    code = """
from kvsim.engine.caller import caller
print(caller(5), sum(caller.stats.cache_hits.values()), sum(caller.stats.cache_misses.values()))
"""
    return tuple(map(int, python(package, code).split()))


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_an_edited_callee_is_noticed(package):
    assert call(package) == (11, 0, 1)
    assert call(package) == (11, 1, 0)  # loaded, not compiled
    edit(package / "cache" / "callee.py", "x * 2", "x * 3")
    assert call(package) == (16, 0, 1)
    assert call(package) == (16, 1, 0)
    edit(package / "cache" / "callee.py", "x * 3", "x * 2")
    assert call(package) == (11, 1, 0)  # the first folder is still there


def test_numba_alone_would_not_notice(package):
    """Why the folder is named by the sources: with one folder for all, the old result comes back."""
    edit(package / "compiled.py", "_writable_folder(sources_digest())", '_writable_folder("one")')
    assert call(package) == (11, 0, 1)
    edit(package / "cache" / "callee.py", "x * 2", "x * 3")
    assert call(package) == (11, 1, 0)


def test_an_edited_constant_of_the_real_package_is_noticed(package):
    """Block hashes follow an edit of `tokens.py`, two modules below their entry."""
    code = """
from kvsim.cache.block_hasher import FastBlockHasher
from kvsim.cache.hashing import BlockContent
from kvsim.rules import rules_for
from kvsim.tokens import segments
print(FastBlockHasher(4, rules_for("0.33"))(segments((1, 0, 8)), BlockContent(8)).tolist())
"""
    before = python(package, code)
    edit(package / "tokens.py", "NUM_TOKEN_IDS = 128_000", "NUM_TOKEN_IDS = 64_000")
    after = python(package, code)
    assert before != after
    assert after == python(package, code, NUMBA_DISABLE_JIT="1")


@pytest.mark.parametrize(
    "name", ["compiled.py", "tokens.py", "rules.py", "cache/lookup.py", "engine/step.py", "gpu/cost/step.py"]
)
def test_the_digest_follows_every_source_of_compiled_code(package, name):
    before = sources_digest(package)
    with (package / name).open("a") as file:
        file.write("\n")
    assert sources_digest(package) != before


def test_the_digest_follows_names_and_nothing_else(package):
    before = sources_digest(package)
    assert re.fullmatch("[0-9a-f]{16}", before)
    (package / "workload" / "more.py").write_text("")
    assert sources_digest(package) == before
    (package / "cache" / "callee.py").rename(package / "cache" / "renamed.py")
    assert sources_digest(package) != before


def test_a_copy_elsewhere_has_the_same_digest(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "kvsim", ignore=shutil.ignore_patterns("__pycache__"))
    assert sources_digest(tmp_path / "kvsim") == sources_digest()


def test_compiled_code_is_only_where_the_digest_looks():
    users = [p for p in PACKAGE.rglob("*.py") if re.search(r"^@compiled", p.read_text(), re.MULTILINE)]
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in users}
    assert folders <= {".", "cache", "engine", "gpu", "gpu/cost", "cluster", "cluster/policies"}


@pytest.mark.parametrize("name", ["cluster/serve.py", "cluster/policies/dynamo.py"])
def test_an_edited_router_leaves_the_engine_as_it_is(package, name):
    engine, cluster = sources_digest(package), sources_digest(package, ALL_SOURCES)
    with (package / name).open("a") as file:
        file.write("\n")
    assert sources_digest(package) == engine
    assert sources_digest(package, ALL_SOURCES) != cluster


def test_an_edited_engine_compiles_the_cluster_anew_too(package):
    before = sources_digest(package, ALL_SOURCES)
    with (package / "engine/step.py").open("a") as file:
        file.write("\n")
    assert sources_digest(package, ALL_SOURCES) != before


FOLDER = "from kvsim.compiled import CACHE_FOLDER; print(CACHE_FOLDER)"


def test_the_folder_is_in_the_cache_home(package, tmp_path):
    digest = sources_digest(package)
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": "", "KVSIM_CACHE_DIR": str(tmp_path / "given")}
    assert python(package, FOLDER, **home) == str(tmp_path / "given" / digest)
    code = "import os; del os.environ['KVSIM_CACHE_DIR']\n" + FOLDER
    assert python(package, code, **home) == str(tmp_path / "home" / ".cache" / "kvsim" / digest)
    home["XDG_CACHE_HOME"] = str(tmp_path / "xdg")
    assert python(package, code, **home) == str(tmp_path / "xdg" / "kvsim" / digest)


def test_a_home_that_cannot_be_written_falls_back_to_the_temporary_folder(package, tmp_path):
    """A file where the folder should be: the one obstacle that stops even root."""
    (tmp_path / "obstacle").touch()
    (tmp_path / "tmp").mkdir()
    folder = python(package, FOLDER, KVSIM_CACHE_DIR=str(tmp_path / "obstacle"), TMPDIR=str(tmp_path / "tmp"))
    assert Path(folder).parent.parent == tmp_path / "tmp"
    assert Path(folder).parent.name.startswith("kvsim-cache-")
    assert Path(folder).name == sources_digest(package)


def test_the_last_resort_is_a_folder_of_its_own(package, tmp_path):
    (tmp_path / "obstacle").touch()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / f"kvsim-cache-{os.getuid()}").touch()
    code = FOLDER + "\nfrom kvsim.engine.caller import caller; print(caller(5))"
    variables = {"KVSIM_CACHE_DIR": str(tmp_path / "obstacle"), "TMPDIR": str(tmp_path / "tmp")}
    folder, result = python(package, code, **variables).splitlines()
    assert Path(folder).parent == tmp_path / "tmp"
    assert result == "11"


def test_whether_it_is_warm(package):
    code = "from kvsim.compiled import is_warm; print(bool(is_warm('caller.caller')))"
    assert python(package, code) == "False"
    call(package)
    assert python(package, code) == "True"
    assert python(package, code, NUMBA_DISABLE_JIT="1") == "True"
