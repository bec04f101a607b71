"""`stentor batch`: from flags to a run and its report."""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock, Timeout

from stentor.batch.catalogue import CUT, FAILED, PARTLY, SPOKEN, TODO, Catalogue
from stentor.batch.fields import FIELDS
from stentor.batch.files import SHARD_NAME, OutputFiles
from stentor.batch.item import ItemOutcome, said
from stentor.batch.manifest import NAME, Manifest
from stentor.batch.plan import SHOWN, Plan, check_settings, plan, write_settings
from stentor.batch.pool import Pool
from stentor.batch.run import Results, Tally, speak_all, without_wrong
from stentor.batch.verify import VerifiedPool
from stentor.errors import EngineError, InvalidRequest
from stentor.host import local_ray
from stentor.say import left_out
from stentor.say.progress import SpeakingBar, loading
from stentor.say.signals import ENDING, terminated_by_signals

SOME_CUT = 3  # exit codes
SOME_FAILED = 4
INTERRUPTED = 130
AUDIO = re.compile(r"audio-[a-z0-9_]{8}")  # folders of `tempfile`


@dataclass(frozen=True)
class RunReport:
    """How a run ended.

    code: 0, 3 if max_frames cut some items, 4 if some failed, 5 if a part of the text of some
    cannot be spoken, 130 if it was interrupted. summary: a line about it, "" for a run that was
    interrupted early.
    """

    code: int
    summary: str = ""


def run(args: argparse.Namespace, load: dict[str, Any]) -> int:
    """Speak all items, with these arguments of `TTS`. Returns the code of `RunReport`."""
    report = complete(plan(args, load), args.resume, args.strict, args.retry_failed)
    if report.summary:
        print(report.summary)
    return report.code


def complete(job: Plan, resume: bool, strict: bool, retry_failed: bool) -> RunReport:
    """Speak all items of a run that earlier runs have not spoken. What is wrong is on standard
    error."""
    check_settings(job.folder, job.settings, resume)
    with terminated_by_signals(), closing(job.catalogue(strict)) as items, _locked(job):
        # another process may have been here meanwhile
        check_settings(job.folder, job.settings, resume)
        try:
            output = job.output()
            with closing(_taken_up(job, items, output, retry_failed)) as listed:
                tally = Tally(items.count() - items.count(TODO))
                _speak(job, items, output, listed, strict, tally)
        except OSError as e:
            raise EngineError(f"the run stopped, and --resume continues: {e}") from e
        except KeyboardInterrupt:  # while the model was loaded, or a second one
            _report_interrupt(items)
            return RunReport(INTERRUPTED)
        return RunReport(_code(items, tally), _summary(job, items, tally))


def _code(items: Catalogue, tally: Tally) -> int:
    if not tally.complete:
        return INTERRUPTED
    if items.count(FAILED):
        return SOME_FAILED
    if items.count(CUT):
        return SOME_CUT
    if items.count(PARTLY):
        return left_out.EXIT_CODE
    return 0


@contextmanager
def _locked(job: Plan) -> Iterator[None]:
    """The folder is there, has nothing on its way but open shards, and no other process writes to
    it."""
    _refuse_links(job.work)
    try:
        job.work.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InvalidRequest("output", f"cannot make {str(job.folder)!r}: {e.strerror}") from None
    try:
        lock = FileLock(job.folder / ".lock", timeout=0).acquire()
    except Timeout:
        raise InvalidRequest("output", f"another process writes to {str(job.folder)!r}") from None
    except OSError as e:
        raise InvalidRequest(
            "output", f"cannot write to {str(job.folder)!r}: {e.strerror}"
        ) from None
    with lock:
        _clean(job.work)
        try:
            yield
        finally:
            _clean(job.work)


def _refuse_links(work: Path) -> None:
    """InvalidRequest if the folder for audio on its way, or what is in it, is a link: a run deletes
    what is there."""
    for path in [work, *(work.iterdir() if work.is_dir() and not work.is_symlink() else ())]:
        if path.is_symlink():
            raise InvalidRequest(
                "output", f"{str(path)!r} is a link, and a run deletes what is there: remove it"
            )


def _clean(work: Path) -> None:
    """Remove what runs have made there and no run goes on with: all but open shards."""
    for path in work.iterdir():
        if AUDIO.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif SHARD_NAME.fullmatch(path.name):
            path.unlink()


def _taken_up(job: Plan, items: Catalogue, output: OutputFiles, retry_failed: bool) -> Manifest:
    """The manifest with what earlier runs have done, all of which has ended in `items`."""
    placed, unpacked = output.recover()
    listed = Manifest(job.folder, items, lambda row: items.settle(row, retry_failed))
    try:
        listed.append([row for row in placed if items.settle(row, retry_failed)])
        for row in unpacked:
            items.settle(row, retry_failed)
    except BaseException:
        listed.close()
        raise
    return listed


def _speak(
    job: Plan, items: Catalogue, output: OutputFiles, listed: Manifest, strict: bool, tally: Tally
) -> None:
    """Load the model, if there is anything to speak, and speak it."""
    started = time.perf_counter()
    # processes of a killed run may write to its own
    audio = Path(tempfile.mkdtemp(prefix="audio-", dir=job.work))
    with (
        closing(_loaded(job, items, audio, strict)) if items.count(TODO) else nullcontext() as pool
    ):
        tally.load = time.perf_counter() - started
        write_settings(job.folder, job.settings)
        spoken = items.chars() - items.chars(TODO)
        with closing(SpeakingBar(items.chars(), spoken)) as bar, _interruptible() as stop:
            results = Results(output, listed, bar, spoken, tally, SHOWN)
            started = time.perf_counter()
            if pool is not None:
                tally.complete = speak_all(
                    without_wrong(items.todo(), results), pool, results, stop
                )
            if tally.complete:
                results.finish()
            tally.speaking = time.perf_counter() - started


def _loaded(job: Plan, items: Catalogue, audio: Path, strict: bool) -> Pool:
    """The model, which takes the defaults of the run. audio: the folder for audio on its way."""
    with loading(job.server or job.run.load.get("model", "the built-in voice")):
        meters = None
        if job.verify is not None:
            from stentor.batch.meters import Meters

            meters = Meters(job.verify, job.run.inputs)
        pool = _speakers(job, audio)
        if meters is not None and job.verify is not None:
            pool = VerifiedPool(pool, meters, job.verify.retry_above)
    try:
        pool.check(job.run.defaults)
        for name, line in items.fields.items():
            if name not in FIELDS and name not in pool.options:
                what = f"line {line} is the first with {name!r}, which this model does not take"
                if strict:
                    raise InvalidRequest("input", what)
                print(f"stentor: warning: {what}", file=sys.stderr)
    except BaseException:
        pool.close()
        raise
    return pool


def _speakers(job: Plan, audio: Path) -> Pool:
    """A model of this process, replicas of it, or a server."""
    if job.server is not None:
        from stentor.batch.over_http import ServerPool

        return ServerPool(job.run, audio, job.server)
    if job.replicas is not None:
        local_ray.prepare()
        from stentor.batch.over_ray import RayPool

        return RayPool(job.run, audio, job.replicas)
    from stentor.batch.speaker import Speaker

    return Speaker(job.run, audio)


@contextmanager
def _interruptible() -> Iterator[Future[None]]:
    """A future that Ctrl-C, SIGTERM or SIGHUP completes. The second one raises
    KeyboardInterrupt."""
    stop: Future[None] = Future()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # under nohup
        del before[signal.SIGHUP]

    def interrupted(number: int, frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        # the signal may have come while this thread held the future's lock
        threading.Thread(target=stop.set_result, args=(None,)).start()

    for number in before:
        signal.signal(number, interrupted)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(job: Plan, items: Catalogue, tally: Tally) -> str:
    """Return how the run ended. Prints what is wrong on standard error."""
    failed = items.count(FAILED)
    total = items.count()
    for outcome in tally.failures:
        _warn_of(outcome, said(**outcome.row["error"]))
    if failed > len(tally.failures):
        _warn(f"{failed} items failed in all: {job.folder / NAME} says why")
    for outcome in tally.partial:
        _warn_of(outcome, left_out.warning(outcome.row["ignored"]))
    partial = items.count(PARTLY)
    if partial > len(tally.partial):
        if partial == 1:
            lacking = "1 item lacks part of its text"
        else:
            lacking = f"{partial} items lack part of their text"
        _warn(f"{lacking}: `ignored` in {job.folder / NAME} has it")
    if not tally.complete:
        _report_interrupt(items)
    spoken = items.count(SPOKEN, CUT, PARTLY)
    ended = f"{spoken} spoken ({items.count(CUT)} cut by max_frames), {failed} failed"
    if tally.before:
        earlier = f", {tally.before} of them by earlier runs"
    else:
        earlier = ""
    rate = tally.seconds / max(tally.speaking, 1e-9)
    return (
        f"{job.folder}: {total} items: {ended}{earlier}; {tally.seconds:.1f} s of audio in {tally.speaking:.1f} s "
        f"({rate:.2f} s of audio per second); load {tally.load:.1f} s"
    )


def _warn_of(outcome: ItemOutcome, what: str) -> None:
    _warn(f"line {outcome.row['line']} ({outcome.row['id']}): {what}")


def _warn(what: str) -> None:
    print(f"stentor: warning: {what}", file=sys.stderr)


def _report_interrupt(items: Catalogue) -> None:
    remaining = items.count(TODO)
    total = items.count()
    print(
        f"stentor: interrupted, with {remaining} of {total} items left. --resume continues",
        file=sys.stderr,
    )
