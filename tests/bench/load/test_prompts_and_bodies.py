"""Texts from every source, and the request bodies made of them."""

import base64
import json

import pytest

from stentor.bench.cli import BACKENDS as FLAG_BACKENDS
from stentor.bench.load.backends import BACKENDS, RequestDefaults, request_body
from stentor.bench.load.prompts import BUILTIN_SETS, TextItem, load, select


@pytest.mark.parametrize("language", ["en", "zh", "mixed"])
@pytest.mark.parametrize(
    ("name", "low", "high"), [("short", 5, 60), ("medium", 20, 200), ("long", 120, 900)]
)
def test_built_in_sets_hold_distinct_texts_of_their_length(name, language, low, high):
    texts = [prompt.text for prompt in load(name, language)]
    assert len(texts) == len(set(texts)) >= 3
    assert all(low <= len(text) <= high for text in texts), [
        t for t in texts if not low <= len(t) <= high
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_questions_are_there_in_both_languages(language):
    assert len(load("questions", language)) >= 10


def test_a_missing_language_or_set_is_an_error_that_names_the_flag():
    with pytest.raises(ValueError, match="--dataset-language"):
        load("questions", "mixed")
    with pytest.raises(ValueError, match=r"--dataset-name.*sharegpt.*short"):
        load("sharegpt")
    with pytest.raises(ValueError, match="--dataset-path"):
        load("custom")


def test_the_seed_fixes_the_order_and_small_sets_repeat_in_it():
    texts = load("short")
    first, again, other = (select(texts, 40, seed) for seed in (1, 1, 2))
    assert first == again
    assert [p.text for p in first] != [p.text for p in other]
    assert [p.index for p in first] == list(range(40))
    assert [p.text for p in first[16:32]] == [p.text for p in first[:16]]
    assert {p.text for p in first[:16]} == {p.text for p in texts}


@pytest.fixture
def seed_tts(tmp_path):
    folder = tmp_path / "en"
    folder.mkdir()
    (folder / "ref.wav").write_bytes(b"RIFFaudio")
    (folder / "meta.lst").write_text(
        "a|What he said.|ref.wav|Say this.\nb|Other.|ref.wav|And this.|b.wav\n"
    )
    return tmp_path


def test_seed_tts_gives_texts_with_or_without_references(seed_tts):
    cloned = load("seed-tts", "en", seed_tts)
    assert [(p.text, p.ref_text) for p in cloned] == [
        ("Say this.", "What he said."),
        ("And this.", "Other."),
    ]
    assert cloned[0].ref_audio == seed_tts / "en" / "ref.wav"
    plain = load("seed-tts-text", "en", seed_tts)
    assert plain[0].ref_audio is None
    assert plain[0].ref_text is None


def test_seed_tts_errors_name_the_line(seed_tts):
    meta = seed_tts / "en" / "meta.lst"
    meta.write_text("a|b|c\n")
    with pytest.raises(ValueError, match=r"meta\.lst:1: expected 4 or 5 fields"):
        load("seed-tts", "en", seed_tts)
    meta.write_text("a|b|missing.wav|d\n")
    with pytest.raises(ValueError, match=r"missing\.wav does not exist"):
        load("seed-tts", "en", seed_tts)
    with pytest.raises(ValueError, match="cannot read"):
        load("seed-tts", "zh", seed_tts)


def test_custom_lines_may_carry_everything_a_request_takes(tmp_path):
    (tmp_path / "me.wav").write_bytes(b"RIFF")
    rows = [
        {"prompt": "vLLM's key."},
        {
            "id": "x",
            "text": "Hi.",
            "voice": "amy",
            "language": "en",
            "ref_audio": "me.wav",
            "extra_body": {"cfg": 2},
        },
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    first, second = load("custom", path=path)
    assert first.text == "vLLM's key."
    assert (second.voice, second.ref_audio, second.extra_body) == (
        "amy",
        tmp_path / "me.wav",
        {"cfg": 2},
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "p.jsonl:1: not JSON"),
        ("[1]", "expected an object"),
        ('{"voice": "a"}', "non-empty string under one of text"),
        ('{"text": "  "}', "non-empty string"),
        ('{"text": "a", "txet": 1}', "unknown key 'txet'; allowed: text"),
        ('{"text": "a", "voice": 3}', "voice must be a string"),
        ('{"text": "a", "extra_body": 3}', "extra_body must be an object"),
        ('{"text": "a", "ref_audio": "no.wav"}', "does not exist"),
        ("", "holds no prompts"),
    ],
)
def test_bad_custom_lines_name_the_line_and_what_is_allowed(tmp_path, line, message):
    path = tmp_path / "p.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        load("custom", path=path)


def test_a_file_of_windows_with_line_separators_inside_its_texts_is_read(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes('\ufeff{"text": "One.\u2028Two."}\r\n{"text": "Three.\x85Four."}\r\n'.encode())
    assert [item.text for item in load("custom", path=path)] == [
        "One.\u2028Two.",
        "Three.\x85Four.",
    ]


def test_the_flags_offer_every_backend_and_every_set():
    assert set(FLAG_BACKENDS) == set(BACKENDS)
    assert set(BUILTIN_SETS) == {"short", "medium", "long", "questions"}


PROMPT = TextItem(0, "Hi.", voice="amy", extra_body={"cfg": 3})


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (
            "openai-audio-speech",
            {"input": "Hi.", "stream": True, "stream_format": "audio", "response_format": "pcm"},
        ),
        (
            "openai-audio-speech-sse",
            {"input": "Hi.", "stream": True, "stream_format": "sse", "response_format": "pcm"},
        ),
        ("websocket", {"type": "session.config", "stream_audio": True, "response_format": "pcm"}),
    ],
)
def test_speech_bodies_hold_what_the_protocol_names(backend, expected):
    body = request_body(
        BACKENDS[backend],
        PROMPT,
        RequestDefaults(model="m", seed=7, extra_body={"cfg": 1, "top_k": 5}),
    )
    assert body == expected | {"model": "m", "voice": "amy", "seed": 7, "cfg": 3, "top_k": 5}


def test_other_servers_get_their_own_field_names():
    body = request_body(BACKENDS["nanovllm"], PROMPT, RequestDefaults(seed=7))
    assert body == {"target_text": "Hi.", "response_format": "pcm", "seed": 7, "cfg": 3}
    body = request_body(BACKENDS["fish"], TextItem(0, "Hi.", voice="amy"), RequestDefaults())
    assert body == {"text": "Hi.", "reference_id": "amy", "format": "wav", "streaming": True}


def test_reference_audio_travels_as_each_server_wants_it(tmp_path):
    audio = tmp_path / "me.wav"
    audio.write_bytes(b"RIFFabc")
    encoded = base64.b64encode(b"RIFFabc").decode()
    prompt = TextItem(0, "Hi.", ref_audio=audio, ref_text="said")
    body = request_body(BACKENDS["stentor"], prompt, RequestDefaults())
    assert body["ref_audio"] == f"data:audio/wav;base64,{encoded}"
    assert body["ref_text"] == "said"
    assert (
        request_body(BACKENDS["stentor"], prompt, RequestDefaults(file_references=True))[
            "ref_audio"
        ]
        == audio.as_uri()
    )
    body = request_body(BACKENDS["nanovllm"], prompt, RequestDefaults())
    assert (body["prompt_wav_base64"], body["prompt_wav_format"], body["prompt_text"]) == (
        encoded,
        "wav",
        "said",
    )
    assert "ref_audio_wav_base64" not in body
    body = request_body(
        BACKENDS["nanovllm"], TextItem(0, "Hi.", ref_audio=audio), RequestDefaults()
    )
    assert body["ref_audio_wav_base64"] == encoded
    assert "prompt_text" not in body
    body = request_body(BACKENDS["fish"], prompt, RequestDefaults())
    assert body["references"] == [{"audio": encoded, "text": "said"}]
