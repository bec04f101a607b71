// What is heard of an utterance, and from where: play, pause, seek, volume. It holds no state of the server.

import { clock } from "./names.js";
import { Player } from "./player.js";

const REPLAYED = 0.05; // seconds gathered of what is here already
const STEP = 5; // seconds, of an arrow key

export class Transport {
  /**
   * @param {object} at the elements: play, seek, time, volume
   * @param {Wave} wave
   * @param {(phase: string) => void} onPhase silent, gathering, playing, paused or ended
   */
  constructor(at, wave, onPhase) {
    Object.assign(this, { at, wave, onPhase });
    this.player = new Player((report) => this.told(report));
    this.load(null);
    at.play.addEventListener("click", () => this.toggle());
    at.seek.addEventListener("input", () => this.seek(Number(at.seek.value)));
    at.seek.addEventListener("keydown", (event) => this.arrow(event));
    at.volume.addEventListener("input", () => this.setVolume());
    this.setVolume();
  }

  /** Call from a click or a key, before anything is awaited: browsers let no page sound without one. */
  open() {
    return this.player.open();
  }

  /** Another utterance, from its beginning, or none. @param {StartBuffer?} buffer when what arrives may begin */
  load(utterance, buffer = null) {
    this.player.stop();
    Object.assign(this, { utterance, buffer, offset: 0, sound: null, gaps: 0 });
    this.phase = "silent";
    this.show();
  }

  /** The first samples are about to come. */
  begin() {
    this.start(0);
  }

  /** Samples have arrived, and utterance holds them. */
  add(samples) {
    if (this.live) {
      this.player.push(samples.slice());
      this.player.wait(this.wait);
    }
    this.show();
  }

  /** Nothing follows. */
  end() {
    if (this.live) this.player.end();
    this.show();
  }

  stop() {
    this.player.stop();
    if (this.live) this.become("silent");
  }

  get live() {
    return this.phase === "gathering" || this.phase === "playing";
  }

  /** Seconds that must be here beyond the position. */
  get wait() {
    return this.utterance.done === null && this.buffer ? Math.min(1e6, this.buffer.need(this.position)) : REPLAYED;
  }

  /** What is being heard, in seconds of the speech. */
  get position() {
    return Math.min(this.offset + (this.sound?.played ?? 0), this.utterance?.seconds ?? 0);
  }

  /** Times that the audio ran out while it was being heard. */
  get underruns() {
    return this.gaps + (this.sound?.underruns ?? 0);
  }

  /** Seconds that are here and have not been heard yet. */
  get lead() {
    return this.utterance.seconds - this.position;
  }

  /** Gather no more: what is here is heard now. */
  now() {
    this.player.wait(0);
  }

  toggle() {
    if (this.phase === "gathering") this.now();
    else if (this.phase === "playing") this.pause();
    else this.play();
  }

  pause() {
    this.leave(this.position);
    this.player.stop();
    this.become("paused");
  }

  /** From the position, or from the beginning once all has been heard. */
  play() {
    this.open();
    if (this.phase === "paused") {
      this.start(this.offset);
      return;
    }
    this.start(0);
    this.gaps = 0;
  }

  /** From a position in seconds. */
  playFrom(seconds) {
    this.open();
    this.start(seconds);
  }

  seek(seconds) {
    const here = Math.min(Math.max(0, seconds), this.utterance.seconds);
    if (this.live) {
      this.start(here);
      return;
    }
    this.leave(here);
    this.become("paused");
  }

  arrow(event) {
    const steps = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
    if (!steps || !this.utterance) return;
    event.preventDefault();
    this.seek(this.position + steps);
  }

  /** What was heard so far is over; `offset` is where it goes on. */
  leave(offset) {
    this.gaps = this.underruns;
    this.offset = offset;
    this.sound = null;
  }

  start(from) {
    const { utterance, player } = this;
    this.leave(from);
    player.start(utterance.rate, this.wait);
    if (utterance.length) player.push(utterance.from(from));
    if (utterance.done !== null) player.end();
    this.become("gathering");
  }

  /** The audio thread reports. */
  told(report) {
    this.sound = report;
    if (!this.live) return;
    if (report.phase === "playing" && this.phase === "gathering") this.become("playing");
    else if (report.phase === "filling" && this.phase === "playing") this.become("gathering");
    else if (report.phase === "idle") this.finish();
  }

  finish() {
    this.leave(this.position);
    this.become("ended");
  }

  become(phase) {
    this.phase = phase;
    this.show();
    this.onPhase(phase);
  }

  setVolume() {
    const { volume } = this.at;
    this.player.volume = Number(volume.value);
    volume.setAttribute("aria-valuetext", `${Math.round(Number(volume.value) * 100)} %`);
  }

  /** Call whenever something may have moved. */
  show() {
    const { at, utterance, wave } = this;
    const seconds = utterance?.seconds ?? 0;
    const { position } = this;
    const names = { gathering: "Play now", playing: "Pause" };
    const name = names[this.phase] ?? (this.phase === "ended" ? "Play again" : "Play");
    if (at.play.ariaLabel !== name) at.play.ariaLabel = at.play.title = name;
    at.play.dataset.shows = this.phase === "playing" ? "pause" : "play";
    at.play.disabled = at.seek.disabled = !seconds;
    at.seek.max = wave.span;
    at.seek.value = position;
    at.seek.setAttribute("aria-valuetext", `${clock(position)} of ${clock(seconds)}`);
    at.time.textContent = `${clock(position)} / ${clock(seconds)}`;
  }
}
