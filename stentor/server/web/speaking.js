// One utterance after another: asked for, heard while it is made, stopped, saved.

import { StartBuffer, expectedSeconds } from "./buffer.js";
import { about } from "./names.js";
import { Utterance } from "./speech.js";
import { MOST_TAKES } from "./takes.js";

const ENDINGS = {
  length: "cut at the maximum length",
  guard_length: "cut: it ran on past the text",
  guard_silence: "cut: it went silent",
};
const SHORTEST = 1; // seconds of speech that tell the pace and the rate for the next

export class Speaking {
  /**
   * @param {object} with form, transport, wave, transcript
   * @param {(state: string, message?: string) => void} become idle, waiting (nothing is heard yet), speaking, paused,
   *   done, stopped, failed
   * @param {(error: Error, midway: boolean) => void} fail
   */
  constructor({ form, transport, wave, transcript }, become, fail) {
    Object.assign(this, { form, transport, wave, transcript, become, fail });
    this.current = null;
    this.kept = null; // the utterance before it
    this.takes = []; // all that were spoken to the end, the oldest first
    this.numbered = 0;
    this.state = "idle";
    this.turn = 0;
    this.learned = new Map(); // model's id: {pace, rate}
  }

  to(state, message) {
    this.state = state;
    this.become(state, message);
  }

  /** Whether the server works for us or something is heard. */
  get busy() {
    return ["waiting", "speaking"].includes(this.state) || this.making;
  }

  get making() {
    return this.current !== null && this.current.done === null;
  }

  async speak() {
    const turn = ++this.turn;
    const opened = this.transport.open(); // within the click, before anything is awaited
    let body;
    try {
      body = { ...(await this.form.body()), word_timestamps: this.form.model.word_timestamps };
    } catch (error) {
      this.fail(error, false);
      return;
    }
    await opened;
    if (turn === this.turn) await this.say(body);
  }

  async say(body) {
    this.halt();
    if (this.current?.length) this.kept = this.current;
    const mine = new Utterance(body);
    this.show(mine, this.buffer());
    this.to("waiting", "Waiting for the first audio…");
    try {
      await mine.receive(() => this.transport.begin(), (samples) => this.heard(mine, samples));
      this.received(mine);
    } catch (error) {
      if (this.current === mine && error.name !== "AbortError") this.broken(mine, error);
    }
  }

  /** Bring an utterance to the loudspeaker. */
  show(utterance, buffer = null) {
    this.current = utterance;
    this.wave.clear();
    this.transcript.load(utterance);
    if (utterance?.length) this.wave.add(utterance.from(0), utterance.rate);
    this.transport.load(utterance, buffer);
  }

  /** Of an utterance of which nothing came: what was here before it is here again. */
  restore() {
    if (!this.current.length) this.show(this.kept);
  }

  buffer() {
    const { form } = this;
    const { pace = 1, rate = null } = this.learned.get(form.model.id) ?? {};
    return new StartBuffer(expectedSeconds(form.text, form.speed) * pace, rate, form.options.wait);
  }

  heard(mine, samples) {
    if (this.current !== mine) return;
    const { buffer } = this.transport;
    buffer.arrived(performance.now() / 1000, samples.length / mine.rate);
    this.wave.expected = buffer.expected;
    this.wave.add(samples, mine.rate);
    this.transport.add(samples);
    if (this.transport.phase === "gathering") this.to(this.state, this.gathering());
  }

  gathering() {
    const seconds = this.transport.buffer.startsIn(this.transport.position);
    if (seconds === null || seconds < 1.5) return "Starts in a moment…";
    return `Buffering, to play without gaps: starts in about ${about(seconds)}. Press Play to start now.`;
  }

  /** All audio is here, though not all has been heard. */
  received(mine) {
    if (this.current !== mine) return;
    this.transport.buffer.ended = true;
    this.wave.expected = 0;
    this.transport.end();
    this.learn(mine);
    if (mine.length) this.takes = [...this.takes, Object.assign(mine, { number: ++this.numbered })].slice(-MOST_TAKES);
    if (!mine.length) this.to("done", "The response contains no audio.");
    else this.to(this.state, this.state === "speaking" ? this.summary() : undefined);
  }

  learn(mine) {
    const { buffer } = this.transport;
    if (mine.seconds < SHORTEST) return;
    const usual = expectedSeconds(mine.body.input, mine.body.speed);
    this.learned.set(mine.body.model, { pace: mine.seconds / usual, rate: Number.isFinite(buffer.rate) ? buffer.rate : null });
  }

  broken(mine, error) {
    const midway = mine.length > 0;
    mine.done = performance.now();
    this.wave.expected = 0;
    this.transport.stop();
    this.restore();
    this.to("failed", midway ? "Not spoken to the end." : `Nothing was spoken.${this.current ? " The speech before it is still here." : ""}`);
    this.fail(error, midway);
  }

  summary() {
    const { current } = this;
    const took = (current.done - current.asked) / 1000;
    const parts = [`${current.seconds.toFixed(1)} s of speech, made in ${took.toFixed(1)} s`];
    if (!current.whole) parts.push("not to the end");
    if (ENDINGS[current.finish]) parts.push(ENDINGS[current.finish]);
    return [...parts, `seed ${current.seed}`].join(" · ");
  }

  stop() {
    if (!this.busy) return;
    const { current } = this;
    const { whole } = current;
    this.halt();
    this.restore();
    if (whole) this.to("stopped", this.summary());
    else this.to("stopped", current.length ? `Stopped after ${current.seconds.toFixed(2)} s of audio` : "Stopped.");
  }

  /** Play a take, from a share of its length on. */
  play(take, share = 0) {
    this.halt();
    this.show(take);
    this.transport.playFrom(take.seconds * share);
  }

  /** Go on with another take from where this one is. */
  compare(take) {
    const { current, transport } = this;
    this.play(take, current?.seconds ? transport.position / current.seconds : 0);
  }

  /** Forget a take. */
  remove(take) {
    this.takes = this.takes.filter((other) => other !== take);
    if (this.kept === take) this.kept = null;
    if (this.current !== take) {
      this.become(this.state);
      return;
    }
    this.halt();
    this.show(this.takes.at(-1) ?? null);
    this.to("done", this.current ? this.summary() : "Ready when you are.");
  }

  /** Silence, and no more work on the server. */
  halt() {
    if (this.making) {
      this.current.cancel();
      this.current.done = performance.now();
      this.wave.expected = 0;
    }
    this.transport.stop();
  }

  /** What is heard has changed. */
  phase(phase) {
    if (phase === "playing") this.to("speaking", this.making ? "Speaking" : this.summary());
    else if (phase === "gathering" && this.making) this.to(this.state === "paused" ? "waiting" : this.state, this.gathering());
    else if (phase === "paused") this.to("paused", "Paused");
    else if (phase === "ended" && !this.making) this.to("done", this.summary());
  }
}
