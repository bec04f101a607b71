// The takes of this visit: what was spoken, to be heard again, compared and deleted.

import { capital, clock } from "./names.js";

export const MOST_TAKES = 20; // the oldest goes: a minute of speech takes 3 MB

export class Takes {
  /**
   * @param {HTMLElement} element the list @param {HTMLElement} section what holds it
   * @param {{play: Function, compare: Function, remove: Function}} actions each with an utterance
   */
  constructor(element, section, actions) {
    Object.assign(this, { element, section, actions, shown: "" });
  }

  /** Show takes, the newest first. @param {Utterance?} current the one that is heard now */
  show(takes, current) {
    const state = JSON.stringify([takes.map((take) => take.number), current?.number ?? 0]);
    if (state === this.shown) return; // nothing is redrawn under a hand
    this.shown = state;
    this.section.hidden = !takes.length;
    this.element.replaceChildren(...takes.map((take) => this.row(take, take === current)).reverse());
  }

  row(take, isCurrent) {
    const row = document.createElement("li");
    const { voice, speed = 1, input } = take.body;
    const facts = [voice && capital(voice), speed !== 1 && `${speed}×`, clock(take.seconds), `seed ${take.seed}`];
    const about = document.createElement("span");
    about.textContent = `Take ${take.number}: ${facts.filter(Boolean).join(" · ")}`;
    about.title = input;
    if (isCurrent) row.setAttribute("aria-current", "true");
    row.append(about, this.button("Play", take), this.button("Compare", take), this.button("Delete", take));
    row.querySelector("[data-action=compare]").hidden = isCurrent;
    return row;
  }

  button(label, take) {
    const button = document.createElement("button");
    const action = { Play: "play", Compare: "compare", Delete: "remove" }[label];
    Object.assign(button, { type: "button", textContent: label, ariaLabel: `${label} take ${take.number}` });
    button.dataset.action = action;
    if (action === "compare") button.title = "Go on with this take from the same place";
    button.addEventListener("click", () => this.actions[action](take));
    return button;
  }
}
