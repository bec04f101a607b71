// A voice, tried before it is chosen: one short sentence.

import { Player } from "./player.js";
import { Utterance } from "./speech.js";

const SENTENCE = "Hello. This is what I sound like.";
const GATHERED = 60; // seconds: all of it is here before it is heard, so that it has no gaps

export class Preview {
  /** @param {HTMLButtonElement} button @param {(error: Error) => void} fail */
  constructor(button, fail) {
    Object.assign(this, { button, fail });
    this.current = null;
    this.player = new Player((report) => report.phase === "idle" && this.stop());
  }

  /** Call from a click. Say the sentence, or stop it. @param {object} body model and voice */
  async toggle(body) {
    if (this.current) {
      this.stop();
      return;
    }
    const mine = (this.current = new Utterance({ ...body, input: SENTENCE }));
    this.show();
    try {
      await this.player.open();
      await mine.receive((rate) => this.player.start(rate, GATHERED), (samples) => this.player.push(samples.slice()));
      this.player.end();
    } catch (error) {
      if (this.current === mine) this.stop();
      if (error.name !== "AbortError") this.fail(error);
    }
  }

  stop() {
    this.current?.cancel();
    this.current = null;
    this.player.stop();
    this.show();
  }

  show() {
    this.button.textContent = this.current ? "Stop" : "Preview";
  }
}
