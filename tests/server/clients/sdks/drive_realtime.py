"""OpenAI's SDK over its Realtime API, and over the beta of it. Prints what came as JSON."""

import base64
import json
import sys

import openai

URL, TEXT = sys.argv[1] + "/v1", "Good morning. How are you?"
got = {"version": openai.__version__}
sockets = URL.replace("http", "ws", 1)  # the beta takes wss, whatever the address
client = openai.OpenAI(base_url=URL, websocket_base_url=sockets, api_key="any", max_retries=0)


def answer(connection: object, last: str = "response.done") -> dict:
    """The events up to the end of a response: their names in order, without repeats, and what they bring."""
    kinds, audio, text = [], b"", ""
    for event in connection:
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type)
        if event.type in ("response.output_audio.delta", "response.audio.delta"):
            audio += base64.b64decode(event.delta)
        elif event.type in (
            "response.output_audio_transcript.delta",
            "response.audio_transcript.delta",
        ):
            text += event.delta
        if event.type in (last, "error"):
            return {"kinds": kinds, "bytes": len(audio), "text": text, "event": event}
    raise EOFError


def message(text: str) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


with client.realtime.connect(model="gpt-realtime") as connection:
    got["created"] = connection.recv().session.audio.output.format.rate
    output = {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "alloy", "speed": 1.0}
    connection.session.update(session={"type": "realtime", "audio": {"output": output}})
    got["voice"] = connection.recv().session.audio.output.voice
    connection.conversation.item.create(item=message(TEXT))
    connection.response.create()
    told = answer(connection)
    item = told["event"].response.output[0]
    got["spoken"] = {k: told[k] for k in ("kinds", "bytes", "text")}
    got["spoken"]["status"], got["spoken"]["transcript"] = (
        told["event"].response.status,
        item.content[0].transcript,
    )
    connection.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=100)
    truncated = connection.recv()
    got["truncated"] = [truncated.type, truncated.audio_end_ms, truncated.transcript]
    connection.response.create(
        response={"input": [message("Fine.")], "conversation": "none", "metadata": {"a": "b"}}
    )
    told = answer(connection)
    got["aside"] = [
        told["text"],
        told["event"].response.conversation_id,
        told["event"].response.metadata,
    ]
    formats = {}
    for type in ("audio/pcmu", "audio/pcma"):
        audio = {"output": {"format": {"type": type}}}
        connection.response.create(response={"input": [message(TEXT)], "audio": audio})
        formats[type] = answer(connection)["bytes"]
    got["formats"] = formats
    connection.input_audio_buffer.append(audio="AAAA", event_id="mine")
    error = connection.recv().error
    got["refused"] = [error.code, error.event_id]
    connection.session.update(
        session={"type": "realtime", "tools": [{"type": "function", "name": "f"}]}
    )
    got["tools"] = connection.recv().error.code
    connection.conversation.item.create(item=message(TEXT * 100))
    connection.response.create()
    answer(connection, "response.output_audio.delta")
    connection.response.cancel()
    got["cancelled"] = answer(connection)["event"].response.status

with client.beta.realtime.connect(model="gpt-4o-realtime-preview") as connection:
    connection.recv()
    connection.session.update(
        session={
            "voice": "alloy",
            "output_audio_format": "g711_ulaw",
            "modalities": ["text", "audio"],
        }
    )
    got["beta format"] = connection.recv().session.output_audio_format
    connection.conversation.item.create(item=message(TEXT))
    connection.response.create()
    told = answer(connection)
    got["beta"] = {"kinds": told["kinds"], "bytes": told["bytes"], "text": told["text"]}
print(json.dumps(got))
