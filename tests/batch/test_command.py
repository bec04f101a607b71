"""`stentor batch` as a user meets it, in this process."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from filelock import FileLock

import stentor
from stentor.batch import run
from stentor.batch.item import derived_seed
from stentor.cli import main
from stentor.errors import EngineError
from stentor.host.installed import pip_install
from stentor.models.toy.model import BROKEN
from tests.batch.runs import CUT, INTERRUPTED, SOME_FAILED, TOY, audio, check, manifest, speak
from tests.helpers import adapters, numpy_threads
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import decoded, tone_wav

GOOD = [{"id": f"a{n}", "text": f"text {n}"} for n in range(4)]
SEVERAL = (*TOY[:-1], "4")  # texts at once


def test_every_kind_of_line_is_spoken_and_listed_in_the_order_of_the_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("from a file", encoding="utf-8-sig")
    (tmp_path / "me.wav").write_bytes(tone_wav(1.0))
    items = [
        {"text": "One is here. Two is here.", "split_granularity": "sentence", "speed": 0.5},
        {"id": "file", "text_file": "text.txt", "voice": "low", "language": "english"},
        {
            "id": 17,
            "text": "cloned",
            "reference": "me.wav",
            "reference_text": "words",
            "seed": 5,
            "voice": None,
        },
        {
            "id": "long",
            "text": "a text that is longer than all others, so it is spoken first",
            "max_frames": 2,
        },
    ]
    assert speak(tmp_path, items, "--speed", "2", toy=SEVERAL) == CUT
    rows = manifest(tmp_path / "out")
    assert [row["id"] for row in rows] == ["00000001", "file", "17", "long"]
    assert check(tmp_path / "out") == [row["id"] for row in rows]
    first = rows[0]
    assert first["seconds"] == pytest.approx((2 * 3 * 6 / 600 + 0.15) / 0.5, abs=0.01)
    assert [s["text"] for s in first["segments"]] == ["One is here.", "Two is here."]
    assert first["segments"][1]["start"] == pytest.approx((18 / 600 + 0.15) / 0.5)
    assert rows[2]["seed"] == 5
    assert rows[1]["seed"] == derived_seed(0, "file")
    samples, rate = soundfile.read(tmp_path / "out" / rows[3]["path"])
    assert (len(samples), rate) == (6, 600)  # 2 frames, twice as fast
    output = capsys.readouterr().out
    assert "4 items: 4 spoken (4 cut by max_frames), 0 failed; " in output
    assert "s of audio per second" in output


def test_bad_items_are_recorded_and_counted_among_good_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [
        '{"id": "a", "text": "good"}',
        '{"id": "b", "text": "x", "vioce": "low"}',
        '{"id": "c", "text": "x", "temperature": 9}',
        '{"id": "d", "text": "x", "temprature": 0.5}',
        '{"id": "e", "text_file": "none.txt"}',
        '{"id": "f", "text": "x", "reference": "none.wav"}',
        f'{{"id": "g", "text": "{BROKEN}"}}',
        '{"id": "h", "text": " "}',
        '{"id": "../i", "text": "x"}',
        '{"id": "j", "text": "x", "text": "y"}',
        '{"id": "k", "text": "x", "seed": -1}',
        "",
        "{",
        '{"id": "l", "text": "\\ud800"}',
        '{"id": "m", "text": "x", "reference": "%s.wav"}' % ("x" * 5000),
        '{"id": "n", "text_file": "a\\u0000b.txt"}',
        '{"id": "o", "text_file": "\\ud800.txt"}',
        '{"id": "p", "text_file": "~nobody-of-this-name/a.txt"}',
        '{"id": "q", "text_file": "empty.txt"}',
        '{"id": "r", "text_file": "latin.txt"}',
        '{"id": "s", "text": "x", "reference": "~nobody-of-this-name/a.wav"}',
        '{"id": "z", "text": "good too"}',
    ]
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    assert speak(tmp_path, "\n".join(bad)) == SOME_FAILED
    rows = {row["id"]: row for row in manifest(tmp_path / "out")}
    assert check(tmp_path / "out") == ["a", "z"]
    errors = {id: row["error"] for id, row in rows.items() if row["status"] == "error"}
    fields = {id: error["field"] for id, error in errors.items()}
    assert fields == {
        "b": "vioce", "c": "temperature", "d": "temprature", "e": "text_file", "f": "reference", "g": None, "h": "text",
        "00000009": "id", "00000010": "text", "k": "seed", "00000013": None, "l": "text", "m": "reference",
        "n": "text_file", "o": "text_file", "p": "text_file", "q": "text_file", "r": "text_file", "s": "reference",
    }  # fmt: skip
    assert "known: id, text, text_file, voice" in errors["b"]["message"]
    assert "it takes cfg, flow_steps" in errors["d"]["message"]
    output = capsys.readouterr()
    assert "21 items: 2 spoken" in output.out
    assert "19 failed" in output.out
    for words in (
        "line 2: vioce: is not a known field",
        "line 4 is the first with 'temprature'",
        "line 13: is not JSON",
    ):
        assert words in output.err


def test_words_are_timed_where_a_line_or_the_run_asks_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    german = {"text": "Die Katze sitzt dort."}
    items = [{"id": "a", **german}, {"id": "b", **german, "word_timestamps": False}]
    flags = ["--words", "--aligner", "tests.helpers.aligners:every"]
    assert speak(tmp_path, items, *flags) == CUT
    timed, none = [row["segments"][0]["words"] for row in manifest(tmp_path / "out")]
    assert none == []
    assert [word["text"] for word in timed] == ["Die", "Katze", "sitzt", "dort."]
    assert [word["end"] for word in timed] == pytest.approx(
        [18 / 600 * (n + 1) / 4 for n in range(4)]
    )
    assert "does not take" not in capsys.readouterr().err
    assert speak(tmp_path, items, "--words", "--resume") == 2
    assert (
        "aligner: was 'tests.helpers.aligners:every' when the run began, and is None"
        in capsys.readouterr().err
    )


def test_products_of_numpy_take_one_thread_in_a_run(tmp_path: Path) -> None:
    """Each of its threads may have an aligner."""
    with numpy_threads.two_before():
        assert speak(tmp_path, [{"id": "a", "text": "Hello there."}]) == CUT
        assert set(numpy_threads.counts()) == {1}


def test_a_line_may_name_an_adapter(tmp_path: Path) -> None:
    folder = adapters.make(tmp_path / "anna", 1, 4, ("q_proj", "v_proj"))
    line = {"text": "Hello there.", "seed": 5, "max_frames": 3, "flow_steps": 2}
    items = [
        {"id": "plain", **line},
        {"id": "anna", **line, "lora": "anna"},
        {"id": "ben", **line, "lora": "ben"},
    ]
    tiny = ("--model", str(adapters.TINY), "--loras", f"anna={folder}", "--max-num-seqs", "1")
    assert speak(tmp_path, items, toy=tiny) == SOME_FAILED
    files = audio(tmp_path / "out")
    assert sorted(files) == ["anna", "plain"]
    assert files["anna"] != files["plain"]
    assert manifest(tmp_path / "out")[2]["error"]["field"] == "lora"


def test_an_item_that_nobody_foresaw_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = stentor.TTS.generate

    def broken(self: stentor.TTS, text: str, **options: object) -> object:
        return {}["missing"] if text == "text 1" else generate(self, text, **options)

    monkeypatch.setattr(stentor.TTS, "generate", broken)
    assert speak(tmp_path, GOOD[:3]) == SOME_FAILED
    assert check(tmp_path / "out") == ["a0", "a2"]
    assert manifest(tmp_path / "out")[1]["error"] == {
        "field": None,
        "message": "KeyError: 'missing'",
    }


def test_audio_depends_on_the_seed_and_the_id_alone(tmp_path: Path) -> None:
    """Neither on the order of the input, nor on what is spoken beside it, to one unit of 16 bits."""
    runs = []
    for name, items, toy in (("a", GOOD, TOY), ("b", GOOD[::-1], SEVERAL)):
        (tmp_path / name).mkdir()
        assert speak(tmp_path / name, items, "--seed", "3", toy=toy) == CUT
        runs.append({id: decoded(data)[0] for id, data in audio(tmp_path / name / "out").items()})
    for id, samples in runs[0].items():
        assert np.abs(samples - runs[1][id]).max() <= 1.01 / 32768
    assert not np.array_equal(runs[0]["a0"], runs[0]["a1"])


CSV = 'id,text,seed,cfg,voice\na,"One, two.\nThree.",7,1.5,\nb,four,,,low\n\nc,five,x,,\nd,six,1\n'


def test_csv_is_read_with_numbers_where_fields_want_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CSV.encode("utf-8-sig"))))
    assert main(["batch", "-", str(tmp_path / "out"), "--input-format", "csv", *TOY]) == SOME_FAILED
    rows = {row["id"]: row for row in manifest(tmp_path / "out")}
    assert rows["a"]["seed"] == 7
    assert rows["b"]["line"] == 4
    assert rows["c"]["error"] == {"field": "seed", "message": "must be a whole number, got str"}
    assert rows["00000007"]["error"] == {
        "field": None,
        "message": "has 3 cells, and the header has 5",
    }


def test_a_plain_text_file_is_one_item_a_line(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes('\ufeffone, "two"\r\n\n  {three}\n'.encode() + b"\xff\n")
    assert main(["batch", str(tmp_path / "in.txt"), str(tmp_path / "out"), *TOY]) == SOME_FAILED
    rows = {row["line"]: row for row in manifest(tmp_path / "out")}
    assert [rows[n]["segments"][0]["text"] for n in (1, 3)] == ['one, "two"', "{three}"]
    assert rows[4]["error"] == {"field": None, "message": "is not UTF-8: invalid start byte"}


def test_rows_and_columns_that_a_spreadsheet_leaves_empty_are_none(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,text,,\r\na,one,,\r\n,,,\r\n , ,,\r\nb,two,,\r\n")
    assert main(["batch", str(tmp_path / "in.csv"), str(tmp_path / "out"), *TOY]) == CUT
    assert [(row["line"], row["id"]) for row in manifest(tmp_path / "out")] == [(2, "a"), (5, "b")]


def test_a_column_of_a_table_that_has_no_name_is_told_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stentor.api.TTS", None)
    (tmp_path / "in.csv").write_text(",text\n0,one\n1,two\n")  # as pandas writes it, with its index
    assert main(["batch", str(tmp_path / "in.csv"), str(tmp_path / "out"), *TOY]) == 2
    assert (
        "input: line 2: has '0' in column 1, which the header does not name"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n',
            "input: line 2: id: 'a' is on line 1 already",
        ),
        ('{"id": "a", "text": "x"}\n{"id": "A", "text": "y"}\n', "differs only in case"),
        ('{"id": "00000002", "text": "x"}\n{"text": "y"}\n', "line 2: id: '00000002' is on line 1"),
        ('{"txet": "x"}\n[]\n', "input: line 1: txet: is not a known field; known: id, text"),
        ("\n", "holds no items"),
    ],
)
def test_an_input_that_is_wrong_as_a_whole_is_refused_before_anything_is_loaded_or_written(
    text: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("stentor.api.TTS", None)
    assert speak(tmp_path, text) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--shards", "0"], "shards: must be at least 1"),
        (["--retry-failed"], "retry_failed: needs --resume"),
        (["--speed", "9"], "speed: must be from 0.25 to 4"),
        (["--reference-text", "x"], "reference_text: needs --reference"),
        (["--strict"], "input: line 2: text: must not be empty"),
        (["--voice", "nobody"], "voice: 'nobody' is not known; known: low, high"),
        (["--shards", "2"], "line 3: id: 'a.b' has a dot"),
        (["--replicas", "0"], "replicas: must be at least 1"),
        (["--resume"], ""),
    ],
)
def test_flags_that_no_line_can_mend_are_refused(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [{"text": "x"}, {"text": ""}, {"id": "a.b", "text": "y"}]
    expected = (
        2
        if says.startswith(("shards:", "retry", "speed", "ref", "input", "voice", "repl"))
        else SOME_FAILED
    )
    assert speak(tmp_path, items, *flags) == expected
    assert says in capsys.readouterr().err
    assert (tmp_path / "out" / "run.json").exists() == (expected != 2)


@pytest.mark.parametrize(
    "link", [".work", ".work/000000.tar", ".work/000000.parquet", ".work/audio-abcdefgh"]
)
def test_a_link_where_a_run_deletes_is_refused_and_nothing_behind_it_is_touched(
    link: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, place = tmp_path / "mine", tmp_path / "out" / link
    (mine / "audio-abcdefgh").mkdir(parents=True)
    (mine / "000000.parquet").write_bytes(b"mine")
    place.parent.mkdir(parents=True)
    place.symlink_to(mine if place.suffix in ("", ".work") else mine / "000000.parquet")
    before = sorted(mine.rglob("*"))
    assert speak(tmp_path, GOOD, "--shards", "2") == 2
    assert "is a link, and a run deletes what is there: remove it" in capsys.readouterr().err
    assert sorted(mine.rglob("*")) == before
    assert (mine / "000000.parquet").read_bytes() == b"mine"


@pytest.mark.parametrize("link", ["manifest.jsonl.part", "run.json.part"])
def test_a_link_where_a_run_writes_aside_is_replaced_and_nothing_behind_it_is_touched(
    link: str, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / link).symlink_to(mine)
    assert speak(tmp_path, GOOD[::-1]) == CUT
    assert mine.read_text() == "mine"
    assert check(tmp_path / "out") == [item["id"] for item in GOOD[::-1]]


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_loop_of_links_is_refused_by_its_argument(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    paths = {"input": tmp_path / "in.txt", "output": tmp_path / "out", place: loop / "x"}
    with pytest.raises(SystemExit):
        main(["batch", str(paths["input"]), str(paths["output"]), *TOY])
    assert "is no path: it is a loop of links" in capsys.readouterr().err


def test_only_what_a_run_makes_is_deleted(tmp_path: Path) -> None:
    work = tmp_path / "out" / ".work"
    for made in ("audio-0a_b1c2d", "000003.parquet", "000007.tar"):
        (work / made).mkdir(parents=True) if made.startswith("audio") else (
            work / made
        ).write_bytes(b"")
    mine = ("notes.txt", "audio-book", "mine.tar", "mine.parquet", "folder")
    for name in mine:
        (work / name).mkdir() if name in ("audio-book", "folder") else (work / name).write_bytes(
            b"mine"
        )
    assert speak(tmp_path, GOOD, "--shards", "2") == CUT
    assert sorted(p.name for p in work.iterdir()) == sorted(mine)


def test_without_the_extra_that_a_flag_needs_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for flags, says in (
        (["--replicas", "2"], f"replicas: needs Ray: {pip_install('ray')}"),
        (["--parquet"], f"parquet: needs pyarrow: {pip_install('parquet')}"),
        (["--format", "opus"], f"format: opus needs PyAV: {pip_install('audio')}"),
    ):
        assert speak(tmp_path, GOOD, *flags) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["flac", "mp3", "opus", "ogg", "m4a", "aac", "ulaw", "alaw"])
def test_audio_is_written_in_every_format(format: str, tmp_path: Path) -> None:
    assert speak(tmp_path, GOOD[:1], "--format", format, "--max-frames", "8") == CUT
    row = manifest(tmp_path / "out")[0]
    samples, rate = decoded((tmp_path / "out" / row["path"]).read_bytes(), format)
    assert row["path"] == f"audio/a0.{format}"
    assert rate == (48_000 if format == "opus" else row["sample_rate"])
    assert 0 < len(samples) / rate - row["seconds"] + 0.02 < 0.4


def test_parquet_has_the_audio_its_text_and_its_times(tmp_path: Path) -> None:
    assert speak(tmp_path, GOOD, "--parquet", "--shards", "3") == CUT
    shards = sorted(p.name for p in (tmp_path / "out/shards").iterdir())
    assert shards == ["000000.parquet", "000001.parquet"]
    rows = [
        row for name in shards for row in pq.read_table(tmp_path / "out/shards" / name).to_pylist()
    ]
    assert {row["id"]: row["text"] for row in rows} == {item["id"]: item["text"] for item in GOOD}
    for row in rows:
        assert soundfile.info(io.BytesIO(row["audio"]["bytes"])).frames == round(
            row["seconds"] * 600
        )
        assert row["audio"]["path"] == f"{row['id']}.wav"
        assert row["segments"][0]["text"] == row["text"]
    check(tmp_path / "out")


def test_tar_shards_are_read_as_webdataset_reads_them(tmp_path: Path) -> None:
    """Members that follow each other and have one name up to the first dot are one sample."""
    assert speak(tmp_path, GOOD, "--shards", "3") == CUT
    samples: list[tuple[str, dict[str, bytes]]] = []
    for shard in sorted((tmp_path / "out/shards").iterdir()):
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, suffix = member.name.partition(".")
                if not samples or samples[-1][0] != key:
                    samples.append((key, {}))
                samples[-1][1][suffix] = tar.extractfile(member).read()
    assert sorted(key for key, _ in samples) == ["a0", "a1", "a2", "a3"]
    listed = {row["id"]: row for row in manifest(tmp_path / "out")}
    for key, parts in samples:
        assert list(parts) == ["wav", "txt", "json"]
        assert parts["txt"].decode() == f"text {key[1:]}"
        assert json.loads(parts["json"]) == listed[key]
    assert [row["path"] for row in listed.values()].count("shards/000000.tar") == 3
    check(tmp_path / "out")


def test_a_second_run_needs_resume_and_then_speaks_only_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"id": "bad", "text": "x", "cfg": 99}
    assert speak(tmp_path, [*GOOD, bad]) == SOME_FAILED
    before = audio(tmp_path / "out")
    assert speak(tmp_path, [*GOOD, bad]) == 2
    assert "output: " in (errors := capsys.readouterr().err)
    assert "holds a run already; --resume continues it" in errors
    rows = (tmp_path / "out/manifest.jsonl").read_bytes()
    (tmp_path / "out/manifest.jsonl").write_bytes(rows[:-20])  # a torn last line
    mended = [{"id": "first", "text": "new"}, *GOOD, {**bad, "cfg": 1}]
    assert speak(tmp_path, mended, "--resume") == CUT
    assert (
        "6 items: 6 spoken (6 cut by max_frames), 0 failed, 4 of them by earlier runs"
        in capsys.readouterr().out
    )
    assert check(tmp_path / "out") == ["first", "a0", "a1", "a2", "a3", "bad"]
    assert audio(tmp_path / "out").items() > before.items()
    monkeypatch.setattr("stentor.api.TTS", None)  # nothing is left to speak
    assert speak(tmp_path, mended, "--resume") == CUT


@pytest.mark.parametrize("kept", [(), ("--shards", "2")])
def test_many_wrong_lines_wait_for_the_disk_together(
    kept: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, waits = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda handle: (waits.append(handle), fsync(handle)))
    items = [
        {"text": "Hello."} if n in (7, 1500) else {"text": "Hello.", "speed": 99}
        for n in range(3000)
    ]
    assert speak(tmp_path, items, *kept) == SOME_FAILED
    assert len(waits) < 30
    rows = manifest(tmp_path / "out")
    assert [row["line"] for row in rows] == list(range(1, 3001))
    assert [row["line"] for row in rows if row["status"] == "ok"] == [8, 1501]


def test_failed_items_stay_failed_unless_they_are_to_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [*GOOD[:1], {"id": "late", "text_file": "late.txt"}]
    assert speak(tmp_path, items) == SOME_FAILED
    (tmp_path / "late.txt").write_text("here now")
    assert speak(tmp_path, items, "--resume") == SOME_FAILED
    assert speak(tmp_path, items, "--resume", "--retry-failed") == CUT
    assert check(tmp_path / "out") == ["a0", "late"]


@pytest.mark.parametrize(
    ("items", "flags", "says"),
    [
        (
            GOOD[1:],
            [],
            "resume: 'a0' has been spoken, and is not in the input any more; use another folder",
        ),
        (
            [{"id": "a0", "text": "other"}, *GOOD[1:]],
            [],
            "resume: 'a0' has been spoken, and is on line 1, which has changed",
        ),
        (GOOD, ["--format", "flac"], "format: was 'wav' when the run began, and is 'flac'"),
        (GOOD, ["--seed", "9"], "seed: was 0 when the run began, and is 9"),
        (GOOD, ["--shards", "2"], "kept_as: was 'files' when the run began, and is 'tar'"),
        (GOOD, ["--deterministic"], "deterministic: was None when the run began, and is True"),
        (GOOD, ["--voice", "low"], "voice: was None when the run began, and is 'low'"),
    ],
)
def test_a_resumed_run_has_the_same_input_and_the_same_settings(
    items: list[dict[str, str]],
    flags: list[str],
    says: str,
    finished: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {p: p.read_bytes() for p in (finished / "out").rglob("*") if p.is_file()}
    assert speak(finished, items, "--resume", *flags) == 2
    assert says in capsys.readouterr().err
    assert {p: p.read_bytes() for p in (finished / "out").rglob("*") if p.is_file()} == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert speak(folder, GOOD) == CUT
    return folder


def test_one_process_writes_to_a_folder(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileLock(finished / "out" / ".lock"):
        assert speak(finished, GOOD, "--resume") == 2
    assert "output: another process writes to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("blocked", "code", "says"),
    [
        ("audio", 1, "stentor: the run stopped, and --resume continues: [Errno 17] File exists: "),
        ("shards", 1, "stentor: the run stopped, and --resume continues: [Errno 17] File exists: "),
        (".lock/x", 2, "stentor: output: cannot write to "),
        ("manifest.jsonl/x", 2, "stentor: resume: "),
    ],
)
def test_a_folder_that_cannot_be_written_to_is_one_line(
    blocked: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Something else is where the run writes."""
    there = tmp_path / "out" / blocked
    there.parent.mkdir(parents=True)
    there.write_text("")
    assert speak(tmp_path, GOOD, *(["--shards", "2"] if blocked == "shards" else [])) == code
    assert capsys.readouterr().err.startswith(says)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_and_can_be_resumed(
    number: signal.Signals,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep, results, before = run.Results.keep, [], signal.getsignal(number)

    def interrupt(self: run.Results, *arguments: object, **options: object) -> None:
        keep(self, *arguments, **options)
        results.append(1)
        if len(results) == 1:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(run.Results, "keep", interrupt)
    items = [{"id": f"i{n}", "text": f"text {n}"} for n in range(30)]
    assert speak(tmp_path, items) == INTERRUPTED
    assert 0 < len(check(tmp_path / "out")) < 30
    assert "of 30 items left. --resume continues" in capsys.readouterr().err
    assert signal.getsignal(number) == before
    assert not [row for row in manifest(tmp_path / "out") if row["status"] == "error"]
    assert speak(tmp_path, items, "--resume") == CUT
    assert len(check(tmp_path / "out")) == 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_while_its_model_loads_says_what_is_left(
    number: signal.Signals,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        assert signal.getsignal(number) != signal.SIG_DFL  # which would end this process
        os.kill(os.getpid(), number)

    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(
        number, usual
    )  # of a run in the foreground: in the background SIGINT is ignored
    try:
        with monkeypatch.context() as patch:
            patch.setattr(stentor.batch.speaker, "TTS", interrupted)
            assert speak(tmp_path, GOOD) == INTERRUPTED
        assert signal.getsignal(number) == usual
    finally:
        signal.signal(number, before)
    assert (
        capsys.readouterr().err
        == "stentor: interrupted, with 4 of 4 items left. --resume continues\n"
    )
    assert speak(tmp_path, GOOD, "--resume") == CUT
    assert len(check(tmp_path / "out")) == 4


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(28, "No space left on device"),
            "stentor: the run stopped, and --resume continues: [Errno 28] No space",
        ),
        (EngineError("the engine has stopped"), "stentor: the engine has stopped"),
    ],
)
def test_what_ends_the_run_is_no_failure_of_an_item(
    error: Exception,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk, and an engine that has stopped."""
    original, calls = stentor.batch.speaker.Speaker.speak, []

    def speak_one(self: stentor.batch.speaker.Speaker, item: object) -> object:
        calls.append(item)
        if len(calls) == 3:
            raise error
        return original(self, item)

    monkeypatch.setattr(stentor.batch.speaker.Speaker, "speak", speak_one)
    assert speak(tmp_path, GOOD) == 1
    assert says in capsys.readouterr().err
    rows = manifest(tmp_path / "out")
    assert len(rows) < 4
    assert all(row["status"] == "ok" for row in rows)
    monkeypatch.undo()
    assert speak(tmp_path, GOOD, "--resume") == CUT
    assert len(check(tmp_path / "out")) == 4


def test_several_items_are_in_the_engine_at_once_and_the_longest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[int] = []
    largest: list[int] = []
    four = threading.Event()
    engine = stentor.engine.engine.Engine
    submit, step = engine.submit, engine._step

    def counted(self: engine, prompt: object, *rest: object) -> object:
        submitted.append(prompt.length)
        stream = submit(self, prompt, *rest)
        largest.append(self.health().queued + self.health().running)
        if len(largest) >= 4:
            four.set()
        return stream

    def held(self: engine) -> None:
        if submitted:
            assert four.wait(STUCK_S)
        step(self)

    monkeypatch.setattr(engine, "submit", counted)
    monkeypatch.setattr(engine, "_step", held)
    items = [{"id": f"i{n}", "text": "x" * (n + 1)} for n in range(24)]
    assert speak(tmp_path, items, toy=SEVERAL) == CUT
    assert max(largest) >= 4
    assert min(submitted[:4]) >= 16
    assert sorted(submitted) == list(range(1, 25))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_over_all_items_with_the_time_left(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    assert speak(finished, [*GOOD, {"id": "more", "text": "more"}], "--resume") == CUT
    screen = terminal.getvalue()
    assert "speaking:" in screen
    assert "24/28" in screen  # before the new item


ROW = {"id": "a0", "line": 1, "status": "ok", "finish_reason": "stop", "input": "x"}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("run.json", b"[" * 100_000),
        ("run.json", b'{"seed": ' + b"1" * 5000 + b"}"),
        ("run.json", b"\xff\xfe"),
        ("run.json", b'{"a":' * 300 + b"1" + b"}" * 300),
        ("manifest.jsonl", b"[" * 100_000 + b"\n"),
        ("manifest.jsonl", b'{"id": ' + b"1" * 5000 + b"}\n"),
        ("manifest.jsonl", b"\xff\n"),
        *(
            ("manifest.jsonl", json.dumps({**ROW, name: value}).encode() + b"\n")
            for name in ROW
            for value in (None, [1], {"a": 1}, 2**70, "\ud800", True)
            if (name, value) != ("input", "\ud800")
        ),
        (
            "manifest.jsonl",
            json.dumps({k: v for k, v in ROW.items() if k != "finish_reason"}).encode() + b"\n",
        ),
    ],
)
def test_what_damages_the_files_of_a_run_is_one_line(
    name: str, damage: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--resume` reads them again. Nothing is spoken, and nothing in the folder is changed."""
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(damage)
    assert speak(tmp_path, GOOD, "--resume") == 2
    errors = capsys.readouterr().err
    assert errors.startswith(("stentor: resume: ", "stentor: output: ")), errors
    assert errors.count("\n") == 1
    assert (out / name).read_bytes() == damage


def test_a_folder_whose_name_is_too_long_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "Hello."}\n')
    for name in ("x" * 300, "/".join("y" * 200 for _ in range(30))):
        words = ["batch", "--model", "dummy:toy", str(tmp_path / "in.jsonl"), str(tmp_path / name)]
        assert main(words) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("stentor: output: ")
        assert errors.count("\n") == 1


def test_text_that_the_voice_cannot_speak_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [{"id": "a", "text": "Hello."}, {"id": "b", "text": "Hello \u4f60\u597d."}]
    assert speak(tmp_path, items, toy=()) == 5
    printed = capsys.readouterr()
    assert (
        "warning: line 2 (b): the voice cannot speak, and left out: \u4f60\u597d\n" in printed.err
    )
    assert "2 items: 2 spoken (0 cut by max_frames), 0 failed" in printed.out
    # nothing is left to speak, and the manifest still says so
    assert speak(tmp_path, items, "--resume", toy=()) == 5
    assert "1 item lacks part of its text: `ignored` in" in capsys.readouterr().err
