// The form: what the model takes is shown, what is filled in becomes a request body.

import { ask } from "./speech.js";

export const $ = (id) => document.getElementById(id);

/** Fields of every model, described as the server describes a model's own options. */
const COMMON = {
  seed: { default: null, low: 0, high: 2 ** 53 - 1, type: "int", help: "the same seed repeats the audio of an idle server", empty: "random" },
  speed: { default: 1, low: 0.25, high: 4, type: "float", help: "pitch is kept" },
  wait: { default: 0.25, low: 0, high: 30, type: "float", help: "seconds gathered before the first is heard" },
};
const HELP = {
  clone: "The voice of a recording; its manner can be described.",
  copy: "The voice of a recording, closer if its words are known.",
  ultimate: "The voice and the manner of a recording, continued from its very words.",
};

export class Form {
  constructor(reference) {
    this.reference = reference;
    this.models = [];
    this.uploaded = [];
    this.known = null;
    $("model").addEventListener("change", () => this.show());
    for (const radio of document.getElementsByName("mode")) radio.addEventListener("change", () => this.showMode());
  }

  /** Ask the server what it has. Resolves to the chosen model. */
  async load() {
    const models = (await (await ask("v1/models")).json()).data.filter((m) => m.id === m.root); // not its other names
    const uploaded = (await (await ask("v1/audio/voices")).json()).uploaded_voices;
    const news = JSON.stringify([models, uploaded]);
    if (news === this.known) return this.model; // nothing is redrawn under a hand that types
    Object.assign(this, { models, uploaded, known: news });
    fill($("model"), models.map((m) => [m.id, m.id]), $("model").value);
    this.show();
    return this.model;
  }

  get model() {
    return this.models.find((m) => m.id === $("model").value);
  }

  get mode() {
    return document.querySelector("[name=mode]:checked").value;
  }

  get takes() {
    return this.model?.takes ?? { instructions: false, reference: false, prompt: false };
  }

  show() {
    const { model, takes } = this;
    $("model-field").hidden = this.models.length < 2;
    const usable = (v) => v.embedding_source !== "embedding" || model.speaker_size > 0;
    const uploaded = takes.reference ? this.uploaded.filter(usable) : [];
    const voices = [...(model?.voices ?? []), ...uploaded.map((v) => v.name)];
    this.voices = voices;
    fill($("voice"), [["", "Default"], ...voices.map((v) => [v, v])], $("voice").value);
    const languages = model?.languages ?? [];
    fill($("language"), [["", "Automatic"], ...languages.map((v) => [v, v])], $("language").value);
    $("language-field").hidden = !languages.length;
    $("modes").hidden = !takes.reference;
    $("mode-ultimate").hidden = !takes.prompt;
    $("mode-voice").lastElementChild.textContent = takes.instructions ? "Voice design" : "Voice";
    $("mode-clone").lastElementChild.textContent = takes.instructions ? "Controllable cloning" : "Cloning";
    if (!takes.reference || (this.mode === "ultimate" && !takes.prompt)) {
      document.querySelector("[name=mode][value=voice]").checked = true;
    }
    if (model?.reference_seconds) this.reference.limit(model.reference_seconds);
    this.showOptions({ ...COMMON, ...model?.options });
    this.showMode();
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

  showOptions(options) {
    const kept = Object.fromEntries([...$("options").querySelectorAll("input")].map((i) => [i.name, i]));
    const fields = Object.entries(options).map(([name, o]) => {
      const input = document.createElement("input");
      input.name = name;
      if (o.type === "bool") {
        input.type = "checkbox";
        input.checked = name in kept ? kept[name].checked : o.default;
      } else {
        Object.assign(input, { type: "number", min: o.low, max: o.high, step: o.type === "int" ? 1 : "any" });
        input.inputMode = o.type === "int" ? "numeric" : "decimal";
        input.placeholder = o.empty ?? o.default ?? "automatic";
        input.value = kept[name]?.value ?? "";
      }
      const hint = document.createElement("span");
      hint.className = "hint";
      hint.textContent = o.type === "bool" || name === "seed" ? o.help : `${o.low} to ${o.high}; ${o.help}`;
      const label = document.createElement("label");
      const title = document.createElement("span");
      title.textContent = { wait: "start buffer" }[name] ?? name.replaceAll("_", " ");
      label.append(...(o.type === "bool" ? [input, title] : [title, input]), hint);
      return label;
    });
    this.options = options;
    $("options").replaceChildren(...fields);
  }

  /** Seconds to gather before the first sample is heard. */
  get wait() {
    const given = Number($("options").querySelector("[name=wait]").value || COMMON.wait.default);
    return Math.min(COMMON.wait.high, Math.max(0, given));
  }

  /** The request body. Nothing is judged here: the server knows what it takes, and says so. */
  async body() {
    const { mode, takes } = this;
    const body = { model: $("model").value, input: $("text").value, ...this.chosenOptions() };
    if (!$("voice-field").hidden && $("voice").value) body.voice = $("voice").value;
    if (!$("language-field").hidden && $("language").value) body.language = $("language").value;
    if (!$("style-field").hidden && $("style").value.trim()) body.instructions = $("style").value.trim();
    if (mode === "voice") return body;
    const audio = await this.reference.uri();
    if (!audio) throw new Missing("Record a reference or choose a file first.", "ref_audio");
    body.ref_audio = audio;
    const words = $("transcript-field").hidden ? "" : $("transcript").value.trim();
    if (mode === "ultimate") {
      if (!words) throw new Missing("Ultimate cloning needs the words that are said in the reference.", "ref_text");
      Object.assign(body, { prompt_audio: audio, prompt_text: words });
    } else if (words) {
      body.ref_text = words;
    }
    return body;
  }

  chosenOptions() {
    const chosen = {};
    for (const input of $("options").querySelectorAll("input")) {
      const { name } = input;
      if (name === "wait") continue;
      if (input.validity.badInput) throw new Missing(`${name}: must be a number`, name);
      if (input.type === "checkbox") {
        if (input.checked !== this.options[name].default) chosen[name] = input.checked;
      } else if (input.value !== "") {
        chosen[name] = Number(input.value);
      }
    }
    return chosen;
  }

  /** Point at the field that an error is about. */
  blame(param) {
    for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    const field = param && document.querySelector(`[name="${CSS.escape(param)}"]`);
    if (!field) return;
    if (field.closest("details")) field.closest("details").open = true;
    field.setAttribute("aria-invalid", "true");
  }
}

/** Something that has to be filled in first; `param` names the field. */
export class Missing extends Error {
  constructor(message, param) {
    super(message);
    this.param = param;
  }
}

function fill(select, choices, chosen) {
  select.replaceChildren(...choices.map(([value, text]) => new Option(text, value)));
  if (choices.some(([value]) => value === chosen)) select.value = chosen;
}
