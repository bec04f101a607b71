// The page: form, server and loudspeaker brought together.

import { program } from "./code.js";
import { Connection } from "./connection.js";
import { $, Form } from "./form.js";
import { Wrong } from "./options.js";
import { Preview } from "./preview.js";
import { Reference } from "./reference.js";
import { Refused, ask } from "./server.js";
import { Speaking } from "./speaking.js";
import { Takes } from "./takes.js";
import { droppedText } from "./text_file.js";
import { Transcript } from "./transcript.js";
import { Transport } from "./transport.js";
import { Wave } from "./wave.js";
import { inWords } from "./words.js";

const HERE = ["wav", "txt"]; // files that need no server
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const reference = new Reference(
  { record: $("record"), file: $("file"), name: $("reference-name"), preview: $("preview") },
  (message) => fail(new Wrong(message, "ref_audio")),
);
const form = new Form(reference);
const wave = new Wave($("wave"));
const transport = new Transport({ play: $("play"), seek: $("seek"), time: $("time"), volume: $("volume") }, wave, (phase) => speaking.phase(phase));
const transcript = new Transcript($("said"), $("unspoken"));
const speaking = new Speaking({ form, transport, wave, transcript }, become, fail);
const takes = new Takes($("takes"), $("history"), {
  play: (take) => speaking.play(take),
  compare: (take) => speaking.compare(take),
  remove: (take) => speaking.remove(take),
});
const preview = new Preview($("preview-voice"), fail);
const connection = new Connection(form, showButtons);
let saving = null; // AbortController of the file that is being made
let painting = false;

function become(state, message) {
  const began = state === "waiting" && document.body.dataset.state !== "waiting";
  document.body.dataset.state = state;
  if (message !== undefined) $("status").textContent = message;
  if (speaking.current?.id) $("status").title = `Request ${speaking.current.id}`;
  if (began) {
    clearError();
    $("output").scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
  }
  showButtons();
  takes.show(speaking.takes, speaking.current);
  if (!painting) paint();
}

function showButtons() {
  const { current, making } = speaking;
  $("speak").disabled = !connection.ready;
  $("keep-button").disabled = $("preview-voice").disabled = !connection.ready;
  $("stop").disabled = !speaking.busy;
  const again = current?.whole && connection.ready; // the server makes other files, and speaks again for other audio
  for (const option of $("format").options) option.disabled = !HERE.includes(option.value) && current !== null && !again;
  if ($("format").selectedOptions[0].disabled) $("format").value = "wav";
  $("save").disabled = !current?.length || making || saving !== null;
  $("output").hidden = !form.model && !current;
  $("figures").hidden = current === null;
}

// -- what is shown while it happens --

const number = (value, digits, unit = "") => (value === null ? "–" : `${value.toFixed(digits)}${unit}`);
const wait = (ms) => (ms === null || ms < 1000 ? number(ms, 0, " ms") : number(ms / 1000, 1, " s"));
const times = (rate) => number(rate, rate !== null && rate < 0.1 ? 2 : 1, "×");

function paint() {
  const { current } = speaking;
  painting = speaking.busy || transport.live;
  $("ttfp").textContent = wait(current?.ttfp ?? null);
  $("rtf").textContent = times(current?.rtf ? 1 / current.rtf : null);
  $("lead").textContent = number(current && painting ? transport.lead : null, 1, " s");
  $("underruns").textContent = number(current && transport.underruns, 0);
  $("underruns").classList.toggle("bad", transport.underruns > 0);
  transport.show();
  const played = transport.phase === "ended" ? Infinity : transport.position;
  wave.played = played;
  wave.draw();
  transcript.show(played, transport.live);
  if (painting) requestAnimationFrame(paint);
}

async function fail(error, midway = false) {
  const expected = error instanceof Wrong || error instanceof Refused;
  if (!expected) console.error(error);
  if (!(error instanceof Wrong)) {
    const state = await connection.check(); // it may have gone, or have other models and voices now
    if (!midway && (state.kind === "down" || state.kind === "locked")) return; // the top of the page says so
  }
  $("error").textContent = inWords(error, midway);
  $("error").hidden = false;
  $("error").scrollIntoView({ block: "nearest" });
  form.blame(error.param);
}

function clearError() {
  $("error").hidden = true;
  form.blame(null);
}

// -- files and voices --

async function save() {
  const { current } = speaking;
  const format = $("format").value;
  clearError();
  saving = new AbortController();
  showButtons();
  if (!HERE.includes(format)) $("save-state").textContent = `Making the ${$("format").selectedOptions[0].text}…`;
  try {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await current.file(format, saving.signal));
    link.download = `stentor-${current.seed}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  } finally {
    $("save-state").textContent = "";
    saving = null;
    showButtons();
  }
}

async function keep() {
  clearError();
  const fields = new FormData();
  fields.set("name", $("keep-name").value);
  fields.set("consent", $("keep-consent").value);
  fields.set("ref_text", $("transcript").value);
  try {
    if (!reference.blob) throw new Wrong("Record a reference or choose a file first.", "ref_audio");
    if (!fields.get("name").trim()) throw new Wrong("The voice needs a name.", "name");
    if (!fields.get("consent").trim()) throw new Wrong("Enter the speaker and their consent.", "consent");
    fields.set("audio_sample", reference.blob, "reference");
    await ask("v1/audio/voices", { method: "POST", body: fields });
    await form.load();
    $("keep-state").textContent = `Kept as ${$("keep-name").value}: it is among the voices now.`;
  } catch (error) {
    fail(error);
  }
}

// -- the settings as code --

function showCode() {
  if (!$("code").open || !form.model) return;
  const language = document.querySelector("[name=code-language]:checked").value;
  try {
    $("program").textContent = program(form.settings(""), language);
  } catch (error) {
    $("program").textContent = inWords(error);
  }
}

async function copyCode() {
  await navigator.clipboard.writeText($("program").textContent);
  $("copy-state").textContent = "Copied";
}

// -- hands --

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("speak").disabled) return;
  saving?.abort();
  clearError();
  preview.stop();
  speaking.speak();
});
for (const kind of ["input", "change"]) {
  $("form").addEventListener(kind, () => {
    if (!$("error").hidden) clearError();
    showCode();
  });
}
$("text").addEventListener("dragover", (event) => event.preventDefault());
$("text").addEventListener("drop", async (event) => {
  if (!event.dataTransfer.files.length) return; // a text is dropped, which the browser takes
  event.preventDefault();
  try {
    form.setText(await droppedText(event.dataTransfer.files[0]));
  } catch (error) {
    fail(error);
  }
});
$("code").addEventListener("toggle", showCode);
$("copy").hidden = !navigator.clipboard; // only https and localhost have one
$("copy").addEventListener("click", copyCode);
$("preview-voice").addEventListener("click", () => {
  if (transport.live) transport.pause();
  preview.toggle(form.voice);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("controls").disabled) $("form").requestSubmit();
  if (event.key === "Escape") {
    preview.stop();
    speaking.stop();
  }
});
$("stop").addEventListener("click", () => speaking.stop());
$("save").addEventListener("click", save);
$("keep-button").addEventListener("click", keep);
showButtons();
paint();
connection.check();
