// The audio thread: a Ring read in blocks of 128 samples, its state told to the page some 20 times a second.

import { Ring } from "./ring.js";

const EVERY = 16; // blocks

class Speaker extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ring = new Ring(sampleRate);
    this.blocks = 0;
    this.told = "";
    this.port.onmessage = (event) => this.ring.take(event.data);
  }

  process(_inputs, outputs) {
    const [first, ...others] = outputs[0];
    this.ring.read(first);
    for (const channel of others) channel.set(first);
    const phase = this.ring.phase + this.ring.id;
    if (phase !== this.told || (this.ring.phase !== "idle" && ++this.blocks % EVERY === 0)) {
      this.told = phase;
      this.port.postMessage(this.ring.state());
    }
    return true;
  }
}

registerProcessor("speaker", Speaker);
