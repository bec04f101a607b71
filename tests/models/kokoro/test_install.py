"""`--model kokoro`: where its folder is found, and how it is made."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from stentor.errors import CheckpointError, ModelNotFound
from stentor.models import hub, model_names
from stentor.models.kokoro import GRAPH, install

TABLE = np.zeros((510, 256), "<f4").tobytes()


def tarball(folder: Path, **files: bytes) -> Path:
    path = folder / install.TARBALL
    with tarfile.open(path, "w:gz") as opened:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/voices/{name}.bin")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that hold a graph of four bytes."""
    for number, name in enumerate(install.PARTS):
        package = tmp_path / "packages" / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "part.bin").write_bytes(b"part"[number : number + 1])
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    digest = install.hashlib.sha256(b"part").hexdigest()
    monkeypatch.setattr(install, "DIGEST", digest)


def test_what_is_not_installed_is_named_with_the_commands(home):
    for look_up in (model_names.check, model_names.graphs_of, hub.directory):
        with pytest.raises(ModelNotFound) as refused:
            look_up("kokoro")
        line = str(refused.value)
        assert "[kokoro]" in line
        assert "npm pack kokoro-js@1.2.1" in line
        assert "-m stentor.models.kokoro.install kokoro-js-1.2.1.tgz" in line
        assert "\n" not in line


def test_the_folder_is_made_once_and_found(home, parts, capsys):
    path = tarball(home, af_heart=TABLE, bm_lewis=TABLE)
    assert install.main([str(path)]) == 0
    folder = home / "cache" / "stentor" / "kokoro"
    assert capsys.readouterr().out == f"{folder}\n"
    assert (folder / GRAPH).read_bytes() == b"part"
    assert sorted(p.name for p in (folder / "voices").iterdir()) == ["af_heart.bin", "bm_lewis.bin"]
    assert [p.name for p in folder.parent.iterdir()] == ["kokoro"]
    assert model_names.graphs_of("kokoro") == hub.directory("kokoro") == folder
    assert install.main([str(path)]) == 0
    assert "exists already" in capsys.readouterr().out


def test_a_folder_of_that_name_and_a_download_are_found(home):
    snapshot = home / "hub" / install.HUB / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / install.WEIGHTS).touch()
    assert model_names.local("kokoro") == snapshot
    (home / "kokoro").mkdir()
    assert model_names.local("kokoro") == Path("kokoro")


def test_what_is_wrong_with_a_tarball_is_said(home, parts, capsys, monkeypatch):
    assert install.main([]) == 2
    assert install.main([str(home / "absent.tgz")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert install.main([str(tarball(home, bm_lewis=TABLE))]) == 1
    assert "has no voices/af_heart.bin" in capsys.readouterr().err
    monkeypatch.setattr(install, "DIGEST", "0")
    with pytest.raises(CheckpointError, match="hold another graph"):
        install.make(tarball(home, af_heart=TABLE), home / "new")
    assert not (home / "new").exists()
