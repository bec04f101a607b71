// The text while it is spoken: the current word is lit, and what was left out is crossed out and named.

import { title } from "./options.js";

const NAMES = ["said", "current", "left-out"]; // ::highlight(…) in player.css
const NAMED = 8; // pieces that were left out
const SHOWN_AT = 1 / 3; // of the height: where a word goes that was out of sight

export class Transcript {
  /** @param {HTMLElement} element shows the text @param {HTMLElement} note names what was left out */
  constructor(element, note) {
    Object.assign(this, { element, note });
    this.marks = NAMES.map(() => (globalThis.Highlight ? new Highlight() : new Set())); // an old browser lights nothing
    if (globalThis.Highlight) NAMES.forEach((name, i) => CSS.highlights.set(name, this.marks[i]));
    new ResizeObserver(() => this.allowScroll()).observe(element);
    this.load(null);
  }

  /** Show an utterance's text, or none. */
  load(utterance) {
    const text = utterance?.body.input ?? "";
    Object.assign(this, { utterance, text, lit: -1, crossed: null });
    this.element.textContent = text;
    this.element.scrollTop = 0;
    this.element.hidden = !text;
    this.places = [0]; // of each character: the server counts code points, a string UTF-16 units
    for (const character of text) this.places.push(this.places.at(-1) + character.length);
    for (const mark of this.marks) mark.clear();
    this.note.textContent = "";
    this.note.hidden = true;
    this.allowScroll();
  }

  /** By keys too, where there is something to scroll. */
  allowScroll() {
    this.element.tabIndex = this.element.scrollHeight > this.element.clientHeight ? 0 : -1;
  }

  /** Light what is spoken at a position in seconds. @param {boolean} follow scroll to it */
  show(position, follow) {
    const { utterance } = this;
    if (!utterance) return;
    const begun = position === Infinity ? utterance.times.length : utterance.times.findLastIndex(({ start }) => start <= position);
    if (begun !== this.lit) this.light(begun, follow);
    if (utterance.unspoken !== this.crossed) this.cross();
  }

  light(index, follow) {
    this.lit = index;
    const [said, current] = this.marks;
    said.clear();
    current.clear();
    const word = this.utterance.times[index];
    if (index >= 0) said.add(this.range(0, word ? this.places[word.start_char] : this.text.length));
    if (!word) return;
    const range = this.range(this.places[word.start_char], this.places[word.end_char]);
    current.add(range);
    if (follow) this.reveal(range.getBoundingClientRect());
  }

  reveal(word) {
    const box = this.element.getBoundingClientRect();
    if (word.top >= box.top && word.bottom <= box.bottom) return;
    const line = parseFloat(getComputedStyle(this.element).lineHeight);
    const top = this.element.scrollTop + word.top - box.top - box.height * SHOWN_AT;
    this.element.scrollTop = Math.round(top / line) * line; // whole lines
  }

  cross() {
    const { unspoken } = this.utterance;
    this.crossed = unspoken;
    this.marks[2].clear();
    for (const piece of unspoken) for (const range of this.rangesOf(piece)) this.marks[2].add(range);
    this.note.textContent = this.notes();
    this.note.hidden = !this.note.textContent;
  }

  notes() {
    const { unspoken, unnamed, unused } = this.utterance;
    const names = [...new Set(unspoken.map(({ text }) => text))];
    const more = names.length - NAMED + unnamed;
    const said = [];
    if (names.length) said.push(`Not spoken, because this voice cannot read it: ${names.slice(0, NAMED).join(", ")}${more > 0 ? ` and ${more} more` : ""}.`);
    if (unused.length) said.push(`This model does not use: ${unused.map(title).join(", ")}.`);
    return said.join(" ");
  }

  /** Where a piece of the text stands: at its place, or wherever its words are. */
  rangesOf({ text, start_char: start, end_char: end }) {
    if (start !== undefined) return [this.range(this.places[start], this.places[end])];
    const found = [];
    for (let at = this.text.indexOf(text); at >= 0; at = this.text.indexOf(text, at + text.length)) {
      found.push(this.range(at, at + text.length));
    }
    return found;
  }

  range(from, to) {
    const range = new Range();
    range.setStart(this.element.firstChild, from);
    range.setEnd(this.element.firstChild, to);
    return range;
  }
}
