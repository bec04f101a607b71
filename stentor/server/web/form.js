// The form: what the model takes is shown, what is filled in becomes a request body.

import { about, capital, shortNames } from "./names.js";
import { expectedSeconds } from "./buffer.js";
import { Options, Wrong } from "./options.js";
import { ask } from "./server.js";

export const $ = (id) => document.getElementById(id);

const HELP = {
  clone: "Copies the voice of a recording. You can describe how it should speak.",
  copy: "Copies the voice of a recording. It gets closer if you type the words spoken in it.",
  ultimate: "Copies the voice and the manner of a recording, and continues from its exact words.",
};
const TALLEST = 0.5; // of the window, the text

export class Form {
  constructor(reference) {
    this.reference = reference;
    this.options = new Options($("options"));
    this.models = [];
    this.uploaded = [];
    this.known = null;
    $("model").addEventListener("change", () => this.show());
    for (const radio of document.getElementsByName("mode")) radio.addEventListener("change", () => this.showMode());
    $("text").addEventListener("input", () => this.showText());
    $("speed").addEventListener("change", () => this.showText());
    new ResizeObserver(() => this.grow()).observe($("controls"));
    this.showText();
  }

  /** Ask the server what it has. Resolves to the chosen model. */
  async load() {
    const models = (await (await ask("v1/models")).json()).data.filter((m) => m.id === m.root); // not its other names
    const uploaded = (await (await ask("v1/audio/voices")).json()).uploaded_voices;
    const news = JSON.stringify([models, uploaded]);
    if (news === this.known) return this.model; // nothing is redrawn under a hand that types
    Object.assign(this, { models, uploaded, known: news });
    this.names = shortNames(models.map((m) => m.id));
    fill($("model"), models.map((m) => [m.id, this.names.get(m.id)]), $("model").value);
    this.show();
    return this.model;
  }

  get model() {
    return this.models.find((m) => m.id === $("model").value);
  }

  /** What people call the chosen model. */
  get name() {
    return this.names.get(this.model.id);
  }

  get mode() {
    return document.querySelector("[name=mode]:checked").value;
  }

  get takes() {
    return this.model?.takes ?? { instructions: false, reference: false, prompt: false };
  }

  get text() {
    return $("text").value;
  }

  get speed() {
    return Number($("speed").value);
  }

  show() {
    const { model, takes } = this;
    $("model-field").hidden = this.models.length < 2;
    const usable = (v) => v.embedding_source !== "embedding" || model.speaker_size > 0;
    const uploaded = takes.reference ? this.uploaded.filter(usable) : [];
    this.voices = [...(model?.voices ?? []), ...uploaded.map((v) => v.name)];
    const described = model?.voice_descriptions ?? {};
    const name = (voice) => capital(voice) + (voice in described ? `, ${described[voice]}` : "");
    const namesAll = model?.voices?.length && !takes.instructions; // its default is the first of them
    const unnamed = namesAll ? [] : [["", "Default"]];
    fill($("voice"), [...unnamed, ...this.voices.map((v) => [v, name(v)])], $("voice").value);
    const languages = model?.languages ?? [];
    fill($("language"), [["", "Automatic"], ...languages.map((v) => [v, capital(v)])], $("language").value);
    $("language-field").hidden = languages.length < 2;
    $("modes").hidden = !takes.reference;
    $("mode-ultimate").hidden = !takes.prompt;
    $("mode-voice").lastElementChild.textContent = takes.instructions ? "Voice design" : "Voice";
    $("mode-clone").lastElementChild.textContent = takes.instructions ? "Controllable cloning" : "Cloning";
    if (!takes.reference || (this.mode === "ultimate" && !takes.prompt)) {
      document.querySelector("[name=mode][value=voice]").checked = true;
    }
    if (model?.reference_seconds) this.reference.limit(model.reference_seconds);
    this.options.show(model?.options);
    this.showMode();
    this.showText();
  }

  showMode() {
    const { mode, takes } = this;
    const cloning = mode !== "voice";
    $("voice-field").hidden = cloning || !this.voices.length;
    $("reference").hidden = !cloning;
    $("transcript-field").hidden = mode === "clone" && takes.prompt;
    $("transcript-hint").textContent = mode === "ultimate" ? "(needed)" : "(optional with most models)";
    $("style-field").hidden = !takes.instructions || mode === "ultimate";
    $("style-label").textContent = cloning ? "Manner" : "Voice and manner";
    $("style").placeholder = cloning ? "cheerful, a little faster" : "a calm old man with a warm, deep voice";
    $("mode-help").hidden = !cloning;
    $("mode-help").textContent = HELP[mode === "clone" && !takes.instructions ? "copy" : mode];
  }

  /** How long the text is, and how long it may be. */
  showText() {
    const count = [...this.text].length;
    const most = this.model?.max_input_chars;
    const seconds = expectedSeconds(this.text, this.speed);
    const of = most ? ` of ${most.toLocaleString("en")}` : "";
    $("count").textContent = `${count.toLocaleString("en")}${of} characters${count ? `, about ${about(seconds)}` : ""}`;
    const over = most !== undefined && count > most;
    $("count").classList.toggle("bad", over);
    if (over) $("text").setAttribute("aria-invalid", "true");
    else $("text").removeAttribute("aria-invalid");
    this.grow();
  }

  /** Take a text in place of the one that is there. */
  setText(text) {
    $("text").value = text;
    $("text").dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** As tall as the text, within the window. */
  grow() {
    const { style } = $("text");
    style.height = "auto";
    const most = innerHeight * TALLEST;
    style.height = `${Math.min(most, $("text").scrollHeight)}px`;
    style.overflowY = $("text").scrollHeight > most ? "auto" : "hidden";
  }

  /** The model and the voice that are chosen, as a request names them. */
  get voice() {
    const chosen = $("voice-field").hidden ? "" : $("voice").value;
    return { model: $("model").value, ...(chosen && { voice: chosen }) };
  }

  /** A request body of what is filled in. @param {string} audio the recording @throws {Wrong} for an option out of range */
  settings(audio) {
    const body = { ...this.voice, input: this.text };
    if (!$("style-field").hidden && $("style").value.trim()) body.instructions = $("style").value.trim();
    if (this.speed !== 1) body.speed = this.speed;
    if (!$("language-field").hidden && $("language").value) body.language = $("language").value;
    Object.assign(body, this.options.chosen);
    if (this.mode === "voice") return body;
    body.ref_audio = audio;
    const words = $("transcript-field").hidden ? "" : $("transcript").value.trim();
    if (this.mode === "ultimate") Object.assign(body, { prompt_audio: audio, prompt_text: words });
    else if (words) body.ref_text = words;
    return body;
  }

  /** The request body. What is empty or out of range is said here, the rest is for the server to judge. */
  async body() {
    this.judgeText();
    const audio = this.mode === "voice" ? null : await this.reference.uri();
    const body = this.settings(audio);
    if (audio === null && "ref_audio" in body) throw new Wrong("Record a reference or choose a file first.", "ref_audio");
    if (body.prompt_text === "") throw new Wrong("Ultimate cloning needs the words spoken in the recording.", "ref_text");
    return body;
  }

  judgeText() {
    if (!this.text.trim()) throw new Wrong("There is no text yet. Type or paste what you want to hear.", "input");
    const count = [...this.text].length;
    const most = this.model.max_input_chars;
    if (count <= most) return;
    const said = `The text has ${count.toLocaleString("en")} characters. This server speaks at most ${most.toLocaleString("en")} at once.`;
    throw new Wrong(said, "input");
  }

  /** Point at the field that an error is about, or at none. */
  blame(param) {
    for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    const field = param && document.querySelector(`[name="${CSS.escape(param)}"]`);
    if (!field) return;
    if (field.closest("details")) field.closest("details").open = true;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", "error");
    if (field.checkVisibility()) field.focus({ preventScroll: true });
  }
}

function fill(select, choices, chosen) {
  select.replaceChildren(...choices.map(([value, text]) => new Option(text, value)));
  if (choices.some(([value]) => value === chosen)) select.value = chosen;
}
