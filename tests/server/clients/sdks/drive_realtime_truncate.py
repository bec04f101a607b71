"""OpenAI's SDK cuts what was spoken at several times, and while it is spoken. Prints what was heard as JSON."""

import json
import sys
import urllib.request

import openai

URL, TEXT = sys.argv[1] + "/v1", "Every boat in the harbour waited for the wind that day."
got: dict = {"text": TEXT, "heard": {}}


def until(connection: object, last: str) -> object:
    for event in connection:
        if event.type in (last, "error"):
            return event
    raise EOFError


def item(text: str) -> dict:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


with openai.OpenAI(base_url=URL, api_key="any").realtime.connect(
    model="gpt-realtime"
) as connection:
    connection.conversation.item.create(item=item(TEXT))
    connection.response.create()
    response = until(connection, "response.done").response
    spoken = response.output[0].id
    with urllib.request.urlopen(f"{URL}/audio/speech/{response.request_id}") as answer:
        outcome = json.load(answer)
    got["words"] = outcome["words"]
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        ms = int(share * 1000 * outcome["duration"])
        connection.conversation.item.truncate(item_id=spoken, content_index=0, audio_end_ms=ms)
        got["heard"][ms] = until(connection, "conversation.item.truncated").transcript
    connection.conversation.item.create(item=item(TEXT))
    connection.response.create()
    until(connection, "response.output_audio.delta")
    until(connection, "response.output_audio.delta")
    connection.response.cancel()
    response = until(connection, "response.done").response
    with urllib.request.urlopen(f"{URL}/audio/speech/{response.request_id}") as answer:
        ms = min(900, int(1000 * json.load(answer)["duration"]))
    connection.conversation.item.truncate(
        item_id=response.output[0].id, content_index=0, audio_end_ms=ms
    )
    got["cancelled"] = {
        "ms": ms,
        "heard": until(connection, "conversation.item.truncated").transcript,
    }
print(json.dumps(got))
