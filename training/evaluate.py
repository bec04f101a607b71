"""Word error rate, repeats and losses, opinion score and speed of a checkpoint: the 24 test sentences and other lists.

    python -m training.evaluate --model DIR --whisper base --seeds 1 2 3 --json out.json
    python -m training.evaluate --model DIR --voice anna paul --sentences training/evaluation/digits.txt --json out.json
    python -m training.evaluate --model DIR --device cuda --speak FILE.npz      # speaks only, to be scored elsewhere:
    python -m training.evaluate --model DIR --spoken FILE.npz --whisper base
    python -m training.evaluate --model DIR --through FOLDER --sentences LIST     # recordings through the autoencoder
    python -m training.evaluate --model DIR --seeds 1 2 3 4 5 --sentences training/evaluation/kinds.txt --half choosing

FOLDER has recordings 000.wav ..., one for each line of the list. FILE.json gets each case when it is done, and a case
that it has is left out, so a run that was stopped goes on with the same command.

A list named `digits` has a tab and the expected digits and letters on each line, and repeats and losses are counted. Of
other lists the word error rate is counted, how many first words were lost, and how many utterances are above 34 %
(`above`). Another way to write the text may stand behind a tab. With `--half` each
kind of a list (`training.halves`) is a case, and the spread over the seeds is printed at the end. Utterances share
windows of whisper unless `--alone` is given. What was heard wrong there is heard again alone.

Needs the extra `quality`, and DistillMOS (`pip install --no-deps distillmos xls-r-sqa`); `--whisper`: a size or folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from whisper_normalizer.english import EnglishTextNormalizer

import stentor
from stentor.models.config_files import read_config
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import parse_vae
from stentor.models.weights import fold_weight_norm, load_weights, read_safetensors
from stentor.score.measures import AnswerAudio, errors_of, opinion_scores, recogniser
from training.halves import HALVES, half, kinds, spreads
from training.heard import (
    SPELLED,
    Listener,
    alone,
    first_word_lost,
    heard_again,
    heard_faults,
    in_clips,
    sign_faults,
)

SENTENCES = Path(__file__).with_name("test_sentences.txt")
BAD = 0.34
"""Word error rate of one utterance: how many are above it is counted."""
LONG = ("worst", "lost", "edited", "heard")  # entries of a result that are not printed
NOISE = (0.0, 0.2)  # deviation added to latents when the autoencoder is judged alone


@dataclass(frozen=True)
class Case:
    """One list spoken by one voice with one seed."""

    measure: str
    """Measure of a list: "sentences", "digits" or "words"."""
    name: str
    texts: tuple[str, ...]
    beside: tuple[str, ...]
    """Text behind a tab: of "digits" the digits and letters of each text, else "" or another way to write it."""
    voice: str | None
    seed: int
    options: tuple[str, ...] = ()
    """Options of the request, such as "temperature=1"."""

    @property
    def label(self) -> str:
        voice = [f"voice {self.voice}"] if self.voice else []
        return ", ".join([self.name, *voice, f"seed {self.seed}", *self.options])


def scored(
    spoken: list[AnswerAudio], heard: list[str], opinions: bool = True, beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Word error rate, opinion scores, the sentences with most errors, and those whose first word was lost."""
    written = (
        [nearest(s, h, b) for s, h, b in zip(spoken, heard, beside, strict=True)]
        if beside
        else spoken
    )
    words = errors_of(written, heard)
    worst = [
        {"sentence": i, "wer": round(w, 3), "heard": heard} for i, w, heard in words.worst if w
    ]
    normal = EnglishTextNormalizer()
    pairs = zip(written, heard, strict=True)
    lost = [
        {"sentence": s.index, "heard": h}
        for s, h in pairs
        if first_word_lost(normal(s.text), normal(h))
    ]
    above = sum(errors_of([s], [h]).error_rate > BAD for s, h in zip(written, heard, strict=True))
    counts = {"first_words_lost": len(lost), "above": above}
    scores = opinion(spoken) if opinions else {}
    return {"wer": round(words.error_rate, 4), **counts, **scores, "worst": worst, "lost": lost}


def nearest(item: AnswerAudio, heard: str, beside: str) -> AnswerAudio:
    """The answer with its text or, if that has fewer errors, with the other way to write it."""
    ways = [item, replace(item, text=beside)] if beside else [item]
    return min(ways, key=lambda way: errors_of([way], [heard]).error_rate)


def opinion(spoken: list[AnswerAudio]) -> dict[str, Any]:
    """Mean and least opinion score."""
    scores = opinion_scores(spoken)
    return {"mos": round(float(scores.mean()), 4), "mos_least": round(float(scores.min()), 4)}


def judged(
    case: Case, spoken: list[AnswerAudio], listen: Listener, singles: Sequence[Listener], mos: bool
) -> dict[str, Any]:
    """The figures of a case: of digits and letters repeats and losses, else the word error rate. And opinion scores.

    What `listen` heard wrong is heard again with `singles`. Of single words the error rate is that of all in a row.
    """
    heard = heard_again(spoken, listen(spoken), singles, lambda i, text: doubt(case, i, text))
    if case.measure == "sentences":
        return scored(spoken, heard, mos, case.beside)
    scores = opinion(spoken) if mos else {}
    if case.measure == "digits":
        return {**sign_faults(case.texts, case.beside, heard), **scores}
    together = AnswerAudio(0, " ".join(case.texts), spoken[0].samples, spoken[0].rate)
    return {
        "wer": round(errors_of([together], [" ".join(heard)]).error_rate, 4),
        **scores,
        "heard": heard,
    }


def doubt(case: Case, index: int, heard: str) -> float:
    """How far a transcript is from the text where the recogniser may be at fault: 0 where it is not in doubt.

    Of digits and letters repeats, additions and losses count, and swaps a little. Of other text the length does.
    """
    if case.measure == "digits":
        found = heard_faults(case.texts[index], case.beside[index], heard)
        return found.edits - 0.99 * found.swaps if found.wrong else 0.0
    longer = len(heard) / len(case.texts[index])
    return 0.0 if 0.5 < longer < 1.5 else abs(longer - 1)


def read_list(path: Path, most: int | None) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Measure of a list, its texts, and the text behind a tab of each line.

    `most` lines are spread over the list.

    Raises:
        SystemExit: a list of digits has a line without a tab.
    """
    measure = path.stem if path.stem in ("digits", "words") else "sentences"
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    texts, beside = columns([line for line in lines if line and not line.startswith("#")], most)
    if measure == "digits" and not all(beside):
        raise SystemExit(f"{path}: each line must be a text, a tab and its digits and letters")
    return measure, texts, beside


def columns(lines: Sequence[str], most: int | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts of lines, and what stands behind a tab of each. `most` lines are spread over all."""
    rows = [line.partition("\t") for line in lines]
    count = min(most or len(rows), len(rows))
    rows = [rows[i * len(rows) // count] for i in range(count)]
    return tuple(text for text, _, _ in rows), tuple(beside for _, _, beside in rows)


def halved(
    paths: Sequence[Path], name: str, most: int | None
) -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """One half of each kind of the lists, as `cases` takes it.

    Raises:
        SystemExit: a list has no kinds.
    """
    for path in paths:
        if not (found := kinds(path)):
            raise SystemExit(f"{path}: has no kinds to halve: lines that begin with ##")
        for kind, lines in found.items():
            yield f"{path.stem}, {kind}, {name}", "sentences", *columns(half(lines, name), most)


def cases(args: argparse.Namespace) -> list[Case]:
    """Every list with every voice and seed."""
    lists = [(path.stem, *read_list(path, args.most)) for path in args.sentences]
    if args.half is not None:
        lists = list(halved(args.sentences, args.half, args.most))
    return [
        Case(measure, name, texts, beside, voice, seed, tuple(args.options))
        for name, measure, texts, beside in lists
        for voice in args.voice
        for seed in args.seeds
    ]


def spoken_by_model(tts: stentor.TTS, case: Case) -> tuple[list[AnswerAudio], dict[str, float]]:
    """All texts in one batch, and how fast; then the first one alone, streamed, for the time to first audio."""
    given = (option.partition("=") for option in case.options)
    options = {name: json.loads(value) for name, _, value in given}
    options |= {"seed": case.seed, **({"voice": case.voice} if case.voice else {})}
    started = time.perf_counter()
    speeches = tts.generate(case.texts, **options)
    took = time.perf_counter() - started
    started = time.perf_counter()
    stream = tts.stream(case.texts[0], **options)
    next(iter(stream))
    first = time.perf_counter() - started
    seconds = sum(s.duration for s in speeches)
    spoken = [
        AnswerAudio(i, t, s.samples, s.sample_rate)
        for i, (t, s) in enumerate(zip(case.texts, speeches, strict=True))
    ]
    return spoken, {
        "rtf": round(took / seconds, 4),
        "first_audio_s": round(first, 4),
        "audio_s": round(seconds, 2),
    }


def speak(
    args: argparse.Namespace, wanted: list[Case]
) -> Iterator[tuple[Case, list[AnswerAudio], dict[str, float]]]:
    """Speech of every case: made now, or read from the file that `--speak` left, or from recordings in a folder."""
    if args.spoken is not None and args.spoken.is_dir():
        yield from ((case, recorded(args.spoken, case.texts), {}) for case in wanted)
        return
    if args.spoken is not None:
        with np.load(args.spoken) as kept:
            for case in wanted:
                rate = int(kept[f"{case.label}/rate"])
                waves = [
                    kept[f"{case.label}/{i}"] / np.float32(32767) for i in range(len(case.texts))
                ]
                spoken = [
                    AnswerAudio(i, t, w, rate)
                    for i, (t, w) in enumerate(zip(case.texts, waves, strict=True))
                ]
                yield case, spoken, {}
        return
    with stentor.TTS(
        args.model,
        max_num_seqs=12,
        device=args.device,
        dtype=args.dtype,
        quantization=args.quantization,
    ) as tts:
        for case in wanted:
            yield case, *spoken_by_model(tts, case)


def keep(path: Path, made: Iterable[tuple[Case, list[AnswerAudio], dict[str, float]]]) -> None:
    """Write speech as 16-bit samples, and print how fast it was made."""
    arrays: dict[str, np.ndarray] = {}
    for case, spoken, speed in made:
        print(case.label, speed, flush=True)
        arrays[f"{case.label}/rate"] = np.array(spoken[0].rate)
        for s in spoken:
            arrays[f"{case.label}/{s.index}"] = (np.clip(s.samples, -1, 1) * 32767).astype(np.int16)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def recorded(folder: Path, texts: Sequence[str]) -> list[AnswerAudio]:
    """The recordings 000.wav ... of a folder, one for each text."""
    read = [soundfile.read(folder / f"{i:03d}.wav", dtype="float32") for i in range(len(texts))]
    return [AnswerAudio(i, t, *r) for i, (t, r) in enumerate(zip(texts, read, strict=True))]


def through_autoencoder(
    path: Path, spoken: Sequence[AnswerAudio]
) -> Callable[[float], list[AnswerAudio]]:
    """Recordings encoded and decoded, with noise of a given deviation on the latents.

    Raises:
        SystemExit: a recording has another sample rate than the autoencoder.
    """
    config = parse_vae(read_config(path).get("audio_vae_config"))
    vae = AudioVAE(config).eval()
    tensors = fold_weight_norm(read_safetensors(path / "audiovae.safetensors"))
    load_weights(vae, tensors, str(path), torch.device("cpu"), ignore=("encoder.fc_logvar.",))
    if any(item.rate != config.sample_rate for item in spoken):
        raise SystemExit(
            f"recordings must have {config.sample_rate} Hz, which the autoencoder takes"
        )

    @torch.inference_mode()
    def speak(noise: float) -> list[AnswerAudio]:
        out = []
        for item in spoken:
            wav = torch.from_numpy(np.pad(item.samples, (0, -len(item.samples) % config.hop)))[None]
            z = vae.encode_latents(wav)
            z = z + noise * torch.randn(
                z.shape, generator=torch.Generator().manual_seed(item.index)
            )
            out.append(replace(item, samples=vae.decode(z)[0].numpy(), rate=config.out_sample_rate))
        return out

    return speak


def through(args: argparse.Namespace, case: Case) -> Iterator[tuple[str, list[AnswerAudio]]]:
    """Recordings as they are, and through the autoencoder with and without noise, each with its label."""
    name, spoken = f"{case.name}, {args.through.name}", recorded(args.through, case.texts)
    yield f"{name}, as recorded", spoken
    decode = through_autoencoder(args.model, spoken)
    for noise in NOISE:
        yield f"{name}, autoencoder, noise {noise:g}", decode(noise)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--whisper", default="base")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--through", type=Path, help="folder of recordings 000.wav ...")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument(
        "--speak", type=Path, help="write the speech to this file and do not score it"
    )
    parser.add_argument(
        "--spoken", type=Path, help="score the speech in this file, or recordings in a folder"
    )
    parser.add_argument(
        "--voice", nargs="+", default=[None], help="named voices, each of which speaks every list"
    )
    parser.add_argument(
        "--options", nargs="+", default=[], metavar="NAME=VALUE", help="options of every request"
    )
    parser.add_argument(
        "--sentences",
        type=Path,
        nargs="+",
        default=[SENTENCES],
        help="lists; see training/evaluation",
    )
    parser.add_argument(
        "--half", choices=HALVES, help="take only this half of each kind of the lists"
    )
    parser.add_argument(
        "--most", type=int, help="take only so many lines of each list, spread over it"
    )
    parser.add_argument(
        "--alone", action="store_true", help="one whisper window for each utterance (slow)"
    )
    parser.add_argument("--no-mos", action="store_true")
    return parser.parse_args()


class Results:
    """Results so far. They are written after each case, and a case that is in the file is not done again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.found: dict[str, Any] = (
            json.loads(path.read_text()) if path is not None and path.exists() else {}
        )

    def add(self, label: str, result: dict[str, Any]) -> None:
        self.found[label] = result
        print(label, {k: v for k, v in result.items() if k not in LONG}, flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps(self.found, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    args = arguments()
    results = Results(args.json)
    wanted = [case for case in cases(args) if case.label not in results.found]
    if args.speak is not None:
        keep(args.speak, speak(args, wanted))
        return
    if not wanted:
        return
    engine = recogniser(args.whisper)

    def judge(case: Case, spoken: list[AnswerAudio]) -> dict[str, Any]:
        singles = (
            [alone(engine, SPELLED, 5), alone(engine, beam=5)]
            if case.measure == "digits"
            else [alone(engine)]
        )
        return judged(
            case, spoken, singles[0] if args.alone else in_clips(engine), singles, not args.no_mos
        )

    if args.through is not None:
        for label, spoken in through(args, wanted[0]):
            if label not in results.found:
                results.add(label, judge(wanted[0], spoken))
        return
    for case, spoken, speed in speak(args, wanted):
        results.add(case.label, {**speed, **judge(case, spoken)})
    if args.half is not None:
        for name, rates in spreads(results.found).items():
            print(name, {key: f"{100 * rate:.1f} %" for key, rate in rates.items()})


if __name__ == "__main__":
    main()
