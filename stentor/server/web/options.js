// The options under Advanced: what people call them, and what each does, in a line.

/** Options of every model, described as the server describes a model's own. `empty` is what an empty field means. */
const COMMON = {
  seed: { default: null, low: 0, high: 2 ** 53 - 1, type: "int", empty: "new each time" },
  wait: { default: null, low: 0, high: 30, type: "float", empty: "automatic" },
};

/** name: [title, meaning] */
const WORDS = {
  seed: ["Seed", "The same number makes the same speech again."],
  wait: ["Start buffer, seconds", "Speech that is gathered before you hear it."],
  temperature: ["Randomness", "Higher is livelier and less sure. 0 is the steadiest."],
  top_k: ["Choices", "How many of the likeliest sounds it chooses from. 0 is all."],
  top_p: ["Share of choices", "It chooses from the likeliest sounds that make up this share."],
  repetition_penalty: ["Against repetition", "Above 1 it avoids sounds that it has just made."],
  cfg: ["Guidance", "Higher keeps closer to the text and the voice, lower is freer."],
  flow_steps: ["Refinement steps", "More sound finer and take longer."],
  min_frames: ["Shortest, frames", "Pieces of sound that are made before it may end."],
  max_frames: ["Longest, frames", "Pieces of sound after which it is cut."],
  ignore_eos: ["Always to the longest", "It goes on to the longest length, though the text has ended."],
  subtalker_temperature: ["Randomness of detail", "The same for the fine part of the sound."],
  subtalker_top_k: ["Choices of detail", "The same for the fine part of the sound. 0 is all."],
  subtalker_top_p: ["Share of choices of detail", "The same for the fine part of the sound."],
  non_streaming_mode: ["Read the whole text first", "It knows how the text ends before it begins to speak."],
  x_vector_only: ["Only the sound of the recording", "It copies the voice and leaves out the manner."],
  trim_leading_silence: ["Cut silence at the start", "The first piece of sound is left out if nothing is heard in it."],
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
