"""Items are measured once they are spoken, and the worst are spoken again with the next seed."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from stentor.batch import meters
from stentor.batch.item import BatchItem, ItemOutcome, failed
from stentor.batch.verify import Checks, VerifiedPool
from stentor.errors import EngineError, InvalidRequest
from tests.batch.runs import TOY, audio, check, manifest, speak

ITEM = BatchItem(1, "a", 5, "digest", {"text": "Hello.", "seed": 7})


class SpeakingPool:
    """A pool whose audio holds the seed of its item."""

    options: frozenset[str] = frozenset()
    at_once = 4

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.folder = folder
        self.error = error
        self.closed = False

    def check(self, defaults: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def submit(self, item: BatchItem) -> Future[ItemOutcome]:
        spoken: Future[ItemOutcome] = Future()
        if self.error is not None:
            spoken.set_exception(self.error)
            return spoken
        path = self.folder / f"{item.id}.wav"
        path.write_text(str(item.fields["seed"]))
        row = {"line": item.line, "id": item.id, "status": "ok", "seed": item.fields["seed"]}
        spoken.set_result(ItemOutcome(row, item.chars, "", path))
        return spoken


def outcome(folder: Path, rates: dict[int, float], retry_above: float | None) -> ItemOutcome:
    """Speak the item, if these are the WERs of its seeds."""
    pool = VerifiedPool(
        SpeakingPool(folder), lambda item, _: {"wer": rates[item.fields["seed"]]}, retry_above
    )
    try:
        return pool.submit(ITEM).result(30)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("rates", "retry_above", "seed", "tries"),
    [
        ({7: 0.5}, None, 7, 1),
        ({7: 0.1}, 0.1, 7, 1),
        ({7: 0.5, 8: 0.0}, 0.1, 8, 2),
        ({7: 0.5, 8: 0.2, 9: 0.3}, 0.1, 8, 3),
        ({7: 0.2, 8: 0.2, 9: 0.2}, 0.1, 7, 3),
    ],
)
def test_the_best_of_the_tries_is_kept(
    tmp_path: Path, rates: dict[int, float], retry_above: float | None, seed: int, tries: int
) -> None:
    kept = outcome(tmp_path, rates, retry_above)
    assert kept.row["verify"] == {"wer": rates[seed], "tries": tries}
    assert kept.row["seed"] == seed
    assert kept.path == tmp_path / "a.wav"
    assert kept.path.read_text() == str(seed)
    assert list(tmp_path.iterdir()) == [kept.path]


def test_a_measure_or_a_pool_that_fails_ends_the_item(tmp_path: Path) -> None:
    def broken(item: BatchItem, outcome: ItemOutcome) -> dict[str, Any]:
        raise ValueError("no model")

    pool = VerifiedPool(SpeakingPool(tmp_path), broken, None)
    with pytest.raises(ValueError, match="no model"):
        pool.submit(ITEM).result(30)
    pool.close()
    stopped = SpeakingPool(tmp_path, EngineError("the engine has stopped"))
    pool = VerifiedPool(stopped, broken, None)
    with pytest.raises(EngineError):
        pool.submit(ITEM).result(30)
    pool.close()
    assert stopped.closed


def test_an_item_that_cannot_be_spoken_is_not_measured(tmp_path: Path) -> None:
    class FailingPool(SpeakingPool):
        def submit(self, item: BatchItem) -> Future[ItemOutcome]:
            spoken: Future[ItemOutcome] = Future()
            spoken.set_result(failed(item, "text", "is too long"))
            return spoken

    pool = VerifiedPool(FailingPool(tmp_path), lambda item, _: {"wer": 0.0}, 0.1)
    row = pool.submit(ITEM).result(30).row
    pool.close()
    assert row["error"] == {"field": "text", "message": "is too long"}
    assert "verify" not in row


@pytest.mark.parametrize(
    ("names", "retry_above", "format", "field"),
    [
        ("words", None, "wav", "verify"),
        (None, 0.1, "wav", "retry_above"),
        ("mos", 0.1, "wav", "retry_above"),
        ("wer", -1.0, "wav", "retry_above"),
        ("wer", None, "raw", "verify"),
    ],
)
def test_wrong_flags_are_named(
    names: str | None, retry_above: float | None, format: str, field: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        Checks.of(names, retry_above, "base", "auto", format)
    assert error.value.param == field


@pytest.mark.parametrize(
    ("language", "code"),
    [("auto", None), ("english", "en"), ("en-GB", "en"), ("german", "de"), ("klingon", None)],
)
def test_languages_have_codes(language: str, code: str | None) -> None:
    checks = Checks.of("wer", None, "base", language, "wav")
    assert checks is not None
    assert checks.language == code


class PlantedMeters:
    """Measures that find the first try of one item wrong."""

    def __init__(self, checks: Checks, inputs: Path) -> None:
        self.planted = set[str]()

    def __call__(self, item: BatchItem, outcome: ItemOutcome) -> dict[str, Any]:
        wrong = item.id == "b" and item.id not in self.planted
        self.planted.add(item.id)
        return {"wer": float(wrong), "errors": int(wrong), "words": 1, "transcript": "Hello."}


def test_a_batch_lists_its_measures_and_the_files_of_the_best_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "Meters", PlantedMeters)
    items = [{"id": "a", "text": "One.", "seed": 1}, {"id": "b", "text": "Two.", "seed": 1}]
    speak(tmp_path, items, "--verify", "wer", "--retry-above", "0.2", toy=TOY)
    rows = {row["id"]: row for row in manifest(tmp_path / "out")}
    assert rows["a"]["verify"]["tries"] == 1
    assert (rows["b"]["verify"]["tries"], rows["b"]["verify"]["wer"]) == (2, 0.0)
    assert rows["b"]["seed"] == 2
    assert sorted(check(tmp_path / "out")) == ["a", "b"]
    assert set(audio(tmp_path / "out")) == {"a", "b"}
    assert speak(tmp_path, items, "--resume") == 2, "other settings"
