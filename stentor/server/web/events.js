// Server-sent events of an answer, read while they arrive.

import { connected } from "./server.js";

/** The data of each event, parsed; its `type` names the event. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await connected("The connection was lost", () => reader.read());
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const event of whole) yield JSON.parse(event.slice(event.indexOf("\ndata: ") + 7));
  }
}
