"""`kvsim.files`: what a path leads to is told, and nothing but a regular file is ever replaced."""

import os
import socket

import pytest

from kvsim.errors import KvsimError
from kvsim.files import readable, write_whole


def test_a_file_is_replaced_whole_and_keeps_its_rights(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    path.chmod(0o640)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_its_place(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    dangling = tmp_path / "dangling.json"
    dangling.symlink_to(tmp_path / "later.json")
    write_whole(dangling, b"new")
    assert (tmp_path / "later.json").read_bytes() == b"new"


@pytest.fixture
def odd_places(tmp_path, monkeypatch):
    """What is there, by its kind in words."""
    folder, pipe, loop = (tmp_path / name for name in ("folder", "pipe", "loop"))
    folder.mkdir()
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    listening = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    listening.bind("socket")
    yield {"a folder": folder, "a named pipe": pipe, "a socket": tmp_path / "socket", "leads to itself": loop}
    listening.close()


def test_what_is_no_file_stays_and_is_told(odd_places, monkeypatch):
    monkeypatch.chdir("/")
    for kind, path in odd_places.items():
        before = os.lstat(path)
        with pytest.raises(KvsimError, match=kind):
            write_whole(path, b"new")
        assert os.lstat(path).st_ino == before.st_ino
        if kind != "leads to itself":
            with pytest.raises(KvsimError, match=f"{path.name}: is {kind}"):
                readable(path)
    folder = odd_places["a folder"].parent
    assert sorted(path.name for path in folder.iterdir()) == ["folder", "loop", "pipe", "socket"]


def test_what_is_not_there(tmp_path):
    with pytest.raises(KvsimError, match="no such file"):
        readable(tmp_path / "absent")
    with pytest.raises(KvsimError, match="cannot write"):
        write_whole(tmp_path / "absent" / "a.json", b"")
    with pytest.raises(KvsimError):
        readable(tmp_path / ("x" * 5000))
