// One utterance: asked of the server, received sample by sample, measured, kept to be heard again.

import { ask, connected } from "./server.js";

export class Utterance {
  constructor() {
    this.parts = []; // Int16Array
    this.rate = 0;
    this.length = 0; // samples
    this.asked = this.first = this.done = null; // performance.now()
    this.id = this.seed = this.body = null;
    this.finish = null; // why the server ended it
    this.whole = false; // all of it was made and is here
    this.stopper = new AbortController();
  }

  /** Ask and receive. `onRate(rate)` once, then `onSamples(Int16Array)` for each part that arrives. */
  async receive(body, onRate, onSamples) {
    this.asked = performance.now();
    this.body = body;
    const response = await ask("v1/audio/speech", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, response_format: "pcm", stream_format: "audio" }),
      signal: this.stopper.signal,
    });
    this.rate = Number(response.headers.get("X-Sample-Rate"));
    this.id = response.headers.get("X-Request-Id");
    this.seed = response.headers.get("X-Seed");
    onRate(this.rate);
    const reader = response.body.getReader();
    let odd = new Uint8Array(0);
    for (;;) {
      const { value, done } = await connected("The connection broke off", () => reader.read());
      if (done) break;
      if (value.length && this.first === null) this.first = performance.now();
      const bytes = new Uint8Array(odd.length + value.length);
      bytes.set(odd);
      bytes.set(value, odd.length);
      const whole = bytes.length & ~1; // a sample may arrive in two halves
      odd = bytes.slice(whole);
      this.keep(new Int16Array(bytes.buffer.slice(0, whole)), onSamples);
    }
    this.done = performance.now();
    this.whole = true;
  }

  keep(samples, onSamples) {
    if (!samples.length) return;
    this.parts.push(samples);
    this.length += samples.length;
    onSamples(samples);
  }

  cancel() {
    this.stopper.abort();
  }

  /** What the server says became of it: {status, finish_reason, error}, or null. It learns of the end about when we do, so it is asked twice. */
  async outcome() {
    for (const wait of [0, 300]) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      try {
        const found = await (await ask(`v1/audio/speech/${encodeURIComponent(this.id)}`)).json();
        if (found.status !== "running") return found;
      } catch {
        return null;
      }
    }
    return null;
  }

  get seconds() {
    return this.rate ? this.length / this.rate : 0;
  }

  /** Milliseconds to the first audio, or null. */
  get ttfp() {
    return this.first === null ? null : this.first - this.asked;
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

  /** The same speech as a file of another format: the server speaks it again with its seed. */
  async file(format, signal) {
    if (format === "wav") return this.wav();
    const body = { ...this.body, seed: Number(this.seed), response_format: format };
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
    const response = await ask("v1/audio/speech", options);
    return connected("The connection broke off", () => response.blob());
  }

  /** A WAV file (RIFF, 16-bit, mono). */
  wav() {
    const head = new DataView(new ArrayBuffer(44));
    const text = (at, s) => [...s].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
    const bytes = this.length * 2;
    text(0, "RIFF");
    head.setUint32(4, 36 + bytes, true);
    text(8, "WAVEfmt ");
    head.setUint32(16, 16, true);
    head.setUint16(20, 1, true);
    head.setUint16(22, 1, true);
    head.setUint32(24, this.rate, true);
    head.setUint32(28, this.rate * 2, true);
    head.setUint16(32, 2, true);
    head.setUint16(34, 16, true);
    text(36, "data");
    head.setUint32(40, bytes, true);
    return new Blob([head, ...this.parts], { type: "audio/wav" });
  }
}
