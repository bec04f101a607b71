// One utterance: asked of the server, received sample by sample, measured, kept to be heard again.

import { events } from "./events.js";
import { Refused, ask, connected } from "./server.js";

const AUDIBLE = 184; // of 32767, as the server counts: -45 dBFS
const SUBTITLES = ["srt", "vtt", "ass"];

export class Utterance {
  /** @param {object} body what to ask for. `word_timestamps`: words of some languages can be timed, at least */
  constructor(body) {
    this.body = body;
    this.parts = []; // Int16Array
    this.rate = 0;
    this.length = 0; // samples
    this.asked = this.first = this.sounded = this.done = null; // performance.now(). sounded: when the first sound can be heard
    this.id = this.seed = null;
    this.provenance = null; // the line that marks it as made by a machine, if the server gives one
    this.times = []; // of words, and of sentences without, in order: {start, end, start_char, end_char}
    this.unspoken = []; // pieces of the text: {text}, and start_char and end_char where they are known
    this.unnamed = 0; // how many more there are
    this.unused = []; // names of fields that the model has no use for
    this.finish = null; // why the server ended it
    this.whole = false; // all of it was made and is here
    this.stopper = new AbortController();
  }

  /** Ask and receive. `onRate(rate)` once, then `onSamples(Int16Array)` for each part that arrives. */
  async receive(onRate, onSamples) {
    this.asked = performance.now();
    const response = await this.answer().catch((error) => {
      if (error.param !== "word_timestamps") throw error;
      this.body = { ...this.body, word_timestamps: false }; // a strict server that knows no words of this language
      return this.answer();
    });
    this.rate = Number(response.headers.get("X-Sample-Rate"));
    this.id = response.headers.get("X-Request-Id");
    this.seed = response.headers.get("X-Seed");
    this.provenance = response.headers.get("X-Provenance");
    const ignored = response.headers.get("X-Ignored") ?? "";
    this.unspoken = [...ignored.matchAll(/input="([^"]*)"/g)].map((found) => ({ text: decodeURIComponent(found[1]) }));
    this.unnamed = Number(ignored.match(/\+(\d+)$/)?.[1] ?? 0);
    onRate(this.rate);
    for await (const event of events(response.body)) this.take(event, onSamples);
    if (!this.whole) throw new Refused("The connection was lost", { lost: true });
  }

  answer() {
    return ask("v1/audio/speech", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...this.body, response_format: "pcm", stream_format: "sse", timestamps: "json" }),
      signal: this.stopper.signal,
    });
  }

  take(event, onSamples) {
    if (event.type === "speech.audio.delta") this.keep(decoded(event.audio), onSamples);
    else if (event.type === "speech.audio.segment") this.times.push(event);
    else if (event.type === "speech.audio.word") this.time(event);
    else if (event.type === "speech.audio.ignored") this.place(event);
    else if (event.type === "speech.audio.error") throw new Refused(event.error.message, event.error);
    else if (event.type === "speech.audio.done") this.end(event);
  }

  /** A word. The first of a sentence takes its place. */
  time(word) {
    if (this.times.at(-1)?.type === "speech.audio.segment") this.times.pop();
    this.times.push(word);
  }

  /** A piece that is not spoken, at its place. Its name may be here already, cut short. */
  place(piece) {
    const others = this.unspoken.filter(({ text, start_char: start }) => start !== undefined || !names(text, piece.text));
    this.unspoken = [...others, piece];
  }

  end({ finish_reason, ignored = [] }) {
    const known = (name) => this.unspoken.some(({ text }) => names(name, text));
    const fresh = ignored.filter(({ text }) => text !== undefined && !known(text));
    this.unspoken = [...this.unspoken, ...fresh];
    this.unnamed = Math.max(0, this.unnamed - fresh.length);
    this.unused = ignored.filter(({ text }) => text === undefined).map(({ param }) => param);
    this.finish = finish_reason;
    this.done = performance.now();
    this.whole = true;
  }

  keep(samples, onSamples) {
    if (!samples.length) return;
    this.first ??= performance.now();
    if (this.sounded === null) this.listen(samples);
    this.parts.push(samples);
    this.length += samples.length;
    onSamples(samples);
  }

  /** Find the first sound. What is silent before it delays it, where it is heard at once. */
  listen(samples) {
    const at = samples.findIndex((sample) => Math.abs(sample) > AUDIBLE);
    if (at < 0) return;
    this.sounded = Math.max(performance.now(), this.first + ((this.length + at) / this.rate) * 1000);
  }

  cancel() {
    this.stopper.abort();
  }

  get seconds() {
    return this.rate ? this.length / this.rate : 0;
  }

  /** Milliseconds to the first sound, or null. */
  get ttfp() {
    return this.sounded === null ? null : this.sounded - this.asked;
  }

  /** Time since asking, by the audio that came in it; below 1 is faster than it is heard. */
  get rtf() {
    return this.length ? ((this.done ?? performance.now()) - this.asked) / 1000 / this.seconds : null;
  }

  /** The samples from a position in seconds on. */
  from(seconds) {
    let skip = Math.min(this.length, Math.max(0, Math.round(seconds * this.rate)));
    const joined = new Int16Array(this.length - skip);
    let at = 0;
    for (const part of this.parts) {
      const rest = part.subarray(Math.min(skip, part.length));
      skip -= part.length - rest.length;
      joined.set(rest, at);
      at += rest.length;
    }
    return joined;
  }

  /** A file of the speech or of its text. In another format than WAV the server speaks it again with its seed. */
  async file(format, signal) {
    if (format === "wav") return this.wav();
    if (format === "txt") return new Blob([this.body.input], { type: "text/plain" });
    const response = SUBTITLES.includes(format) ? await this.subtitles(format, signal) : await this.again(format, signal);
    return connected("The connection was lost", () => response.blob());
  }

  /** Subtitles of two lines. WebVTT and ASS mark each word. */
  subtitles(format, signal) {
    return ask(`v1/audio/speech/${encodeURIComponent(this.id)}/timestamps?format=${format}&words=${format !== "srt"}`, { signal });
  }

  again(format, signal) {
    const body = { ...this.body, word_timestamps: false, seed: Number(this.seed), response_format: format, stream: false };
    return ask("v1/audio/speech", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  }

  /** A WAV file (RIFF, 16-bit, mono), with its mark as a comment if it has one. */
  wav() {
    const mark = this.provenance === null ? "" : `${this.provenance}\0`;
    const room = mark ? 20 + mark.length + (mark.length % 2) : 0;
    const head = new DataView(new ArrayBuffer(44 + room));
    const text = (at, s) => [...s].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
    const bytes = this.length * 2;
    text(0, "RIFF");
    head.setUint32(4, head.byteLength - 8 + bytes, true);
    text(8, "WAVEfmt ");
    head.setUint32(16, 16, true);
    head.setUint16(20, 1, true);
    head.setUint16(22, 1, true);
    head.setUint32(24, this.rate, true);
    head.setUint32(28, this.rate * 2, true);
    head.setUint16(32, 2, true);
    head.setUint16(34, 16, true);
    if (mark) {
      text(36, "LIST");
      head.setUint32(40, room - 8, true);
      text(44, "INFOICMT");
      head.setUint32(52, room - 20, true);
      text(56, mark);
    }
    text(head.byteLength - 8, "data");
    head.setUint32(head.byteLength - 4, bytes, true);
    return new Blob([head, ...this.parts], { type: "audio/wav" });
  }
}

/** Whether a name that may be cut short is that of a piece of text. */
const names = (name, text) => name === text || (name.length > 1 && name.endsWith("…") && text.startsWith(name.slice(0, -1)));

const decoded = (base64) => new Int16Array(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer);
