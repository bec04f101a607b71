// The options under Advanced: what people call them, and what each does, in a line.

/** Options of every model, described as the server describes a model's own. `empty` is what an empty field means. */
const COMMON = {
  seed: { default: null, low: 0, high: 2 ** 53 - 1, type: "int", empty: "new each time" },
  wait: { default: null, low: 0, high: 30, type: "float", empty: "automatic" },
};

/** name: [title, meaning] */
const WORDS = {
  seed: ["Seed", "The same seed gives the same speech again."],
  wait: ["Start buffer, seconds", "Speech to collect before playback starts."],
  temperature: ["Randomness", "Higher is livelier and less predictable. 0 is the steadiest."],
  top_k: ["Choices", "Picks from this many of the likeliest sounds. 0 means all."],
  top_p: ["Share of choices", "Picks from the likeliest sounds that add up to this share."],
  repetition_penalty: ["Repetition penalty", "Above 1, it avoids sounds that it has just made."],
  cfg: ["Guidance", "Higher follows the text and the voice more closely."],
  flow_steps: ["Refinement steps", "Higher is more accurate and slower."],
  min_frames: ["Minimum length, frames", "Speech does not end before this."],
  max_frames: ["Maximum length, frames", "Speech is cut off here."],
  ignore_eos: ["Always use the maximum length", "Goes on after the text has ended."],
  subtalker_temperature: ["Randomness of detail", "Randomness for the fine detail of the sound."],
  subtalker_top_k: ["Choices of detail", "Choices for the fine detail of the sound. 0 means all."],
  subtalker_top_p: ["Share of choices of detail", "Share of choices for the fine detail of the sound."],
  non_streaming_mode: ["Read the whole text first", "Speech starts later and knows how the text ends."],
  x_vector_only: ["Copy the sound only", "Copies the voice of the recording without its manner."],
  trim_leading_silence: ["Trim silence at the start", "Drops the first piece of sound if it is silent."],
};

/** What an option is called. */
export function title(name) {
  return WORDS[name]?.[0] ?? name.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());
}

export class Options {
  constructor(element) {
    this.element = element;
    this.known = {};
  }

  get inputs() {
    return [...this.element.querySelectorAll("input")];
  }

  /** Show the fields of a model's options. What has been filled in is kept. */
  show(own) {
    const kept = Object.fromEntries(this.inputs.map((i) => [i.name, i]));
    this.known = { ...COMMON, ...own };
    this.element.replaceChildren(...Object.entries(this.known).map(([name, o]) => field(name, o, kept[name])));
  }

  /** Seconds to gather before speech is heard, or null if the user has left it to the page. */
  get wait() {
    const input = this.inputs.find((i) => i.name === "wait");
    return input?.value ? Math.min(COMMON.wait.high, Math.max(0, Number(input.value))) : null;
  }

  /** What differs from the model's own. @throws {Wrong} for what is no number in its range */
  get chosen() {
    const chosen = {};
    for (const input of this.inputs) {
      const { name } = input;
      if (input.type === "checkbox") {
        if (input.checked !== this.known[name].default) chosen[name] = input.checked;
        continue;
      }
      const { low, high, type } = this.known[name];
      const kind = type === "int" ? "a whole number" : "a number";
      if (!input.validity.valid) throw new Wrong(`“${title(name)}” must be ${kind} ${range(low, high)}.`, name);
      if (input.value !== "" && name !== "wait") chosen[name] = Number(input.value);
    }
    return chosen;
  }
}

/** Something that has to be filled in first, or otherwise; `param` names the field. The message is for people. */
export class Wrong extends Error {
  constructor(message, param) {
    super(message);
    this.param = param;
  }
}

const range = (low, high) => (high >= 2 ** 53 - 1 ? `of ${low} or more` : `from ${low} to ${high}`);

function limits({ low, high }) {
  const made = document.createElement("span");
  made.className = "hint";
  made.textContent = `${low} to ${high}`;
  return made;
}

function field(name, o, kept) {
  const input = document.createElement("input");
  input.name = name;
  input.id = `option-${name}`;
  const hint = document.createElement("span");
  hint.className = "hint";
  hint.id = `${input.id}-hint`;
  hint.textContent = WORDS[name]?.[1] ?? o.help ?? "";
  input.setAttribute("aria-describedby", hint.id);
  if (o.type === "bool") {
    input.type = "checkbox";
    input.checked = kept ? kept.checked : o.default;
  } else {
    Object.assign(input, { type: "number", min: o.low, max: o.high, step: o.type === "int" ? 1 : "any" });
    input.inputMode = o.type === "int" ? "numeric" : "decimal";
    input.placeholder = o.empty ?? o.default ?? "automatic";
    input.value = kept?.value ?? "";
  }
  const label = document.createElement("label");
  label.htmlFor = input.id;
  label.textContent = title(name);
  if (o.type !== "bool" && name !== "seed") label.append(limits(o));
  const made = document.createElement("div");
  made.className = o.type === "bool" ? "option check" : "option";
  made.append(...(o.type === "bool" ? [input, label] : [label, input]), hint);
  return made;
}
