// Sound out: an AudioContext with a Ring in its audio thread.

import { Ring } from "./ring.js";

const BLOCK = 2048;

export class Player {
  /** @param {(state: object) => void} onState called with Ring.state() while something is played */
  constructor(onState) {
    this.onState = onState;
    this.context = null;
    this.opened = null;
    this.id = 0;
    this.send = null;
    this.gain = null;
    this.loudness = 1;
  }

  /** From 0 to 1. */
  set volume(value) {
    this.loudness = value;
    this.gain?.gain.setTargetAtTime(value ** 2, this.context.currentTime, 0.01); // squared: even steps for the ear
  }

  /** Call from a click or a key: browsers let no page sound without one. Resolves once there is an output. */
  open() {
    if (!this.context) {
      if (navigator.audioSession) navigator.audioSession.type = "playback"; // else an iPhone's mute switch mutes us
      this.context = new AudioContext({ latencyHint: "interactive" });
      this.opened = this.connect();
    }
    this.context.resume();
    return this.opened;
  }

  async connect() {
    this.gain = new GainNode(this.context, { gain: this.loudness ** 2 });
    this.gain.connect(this.context.destination);
    document.addEventListener("visibilitychange", () => document.hidden || this.context.resume()); // after a phone call
    if (this.context.audioWorklet) {
      try {
        await this.byWorklet();
        return;
      } catch {
        // a browser whose worklets cannot import modules
      }
    }
    this.byScript();
  }

  async byWorklet() {
    const { context } = this;
    await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
    const node = new AudioWorkletNode(context, "speaker", { numberOfInputs: 0, outputChannelCount: [2] });
    node.port.onmessage = (event) => this.told(event.data);
    node.connect(this.gain);
    this.send = (message, moved) => node.port.postMessage(message, moved);
  }

  /** Worklets need https or localhost. A phone that reads this page by http gets the old kind of node. */
  byScript() {
    const { context } = this;
    const ring = new Ring(context.sampleRate);
    const node = context.createScriptProcessor(BLOCK, 0, 1);
    let phase = "idle";
    node.onaudioprocess = (event) => {
      ring.read(event.outputBuffer.getChannelData(0));
      if (phase !== "idle" || ring.phase !== "idle") this.told(ring.state());
      phase = ring.phase;
    };
    node.connect(this.gain);
    this.send = (message) => ring.take(message);
    this.node = node; // one without a reference may be collected
  }

  told(state) {
    if (state.id === this.id) this.onState(state);
  }

  /** A new stream. @param {number} wait seconds to gather before it is heard */
  start(rate, wait) {
    this.send({ start: { id: ++this.id, rate, wait } }, []);
  }

  /** @param {Int16Array} samples given away */
  push(samples) {
    this.send({ id: this.id, samples }, [samples.buffer]);
  }

  /** Of the stream that is gathered: how much must be there. */
  wait(seconds) {
    this.send({ id: this.id, wait: seconds }, []);
  }

  end() {
    this.send({ id: this.id, end: true }, []);
  }

  stop() {
    if (this.send) this.send({ id: this.id++, stop: true }, []);
  }
}
