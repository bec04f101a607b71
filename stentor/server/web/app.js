// The page: form, server and loudspeaker brought together.

import { $, Form } from "./form.js";
import { Player } from "./player.js";
import { Reference } from "./reference.js";
import { Utterance, ask } from "./speech.js";
import { Wave } from "./wave.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const POLL = 1000; // ms, while the model is being loaded

const reference = new Reference(
  { record: $("record"), file: $("file"), name: $("reference-name"), preview: $("preview") },
  (message) => fail(new Error(message)),
);
const form = new Form(reference);
const wave = new Wave($("wave"));
const player = new Player(onSound);
let current = null; // the utterance shown
let sound = null; // the Ring's last word

// -- state: idle, waiting (asked), speaking (heard), done, stopped, failed --

function become(state, message) {
  document.body.dataset.state = state;
  const busy = state === "waiting" || state === "speaking";
  $("stop").disabled = !busy;
  const kept = Boolean(current?.length) && !(busy && current.done === null);
  $("replay").disabled = !kept || busy;
  offer(kept && state !== "waiting");
  if (message) $("status").textContent = message;
}

function offer(ready) {
  const link = $("download");
  if (link.href) URL.revokeObjectURL(link.href);
  link.removeAttribute("href");
  link.setAttribute("aria-disabled", "true");
  if (!ready) return;
  link.removeAttribute("aria-disabled");
  link.href = URL.createObjectURL(current.wav());
  link.download = `stentor-${current.seed}.wav`;
}

const state = () => document.body.dataset.state;

// -- speaking --

async function speak() {
  halt();
  clearError();
  const mine = new Utterance();
  current = mine;
  sound = null;
  wave.clear();
  become("waiting", "Waiting for the first audio…");
  $("output").scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
  const opened = player.open(); // within the click, before anything is awaited
  paint();
  try {
    const body = await form.body();
    await opened;
    await mine.receive(body, (rate) => player.start(rate, form.wait), (samples) => heard(mine, samples));
    player.end();
    if (current !== mine) return;
    if (!mine.length) become("done", "The answer holds no audio.");
    await ended(mine);
  } catch (error) {
    if (current !== mine || error.name === "AbortError") return;
    player.stop();
    const outcome = mine.first !== null && mine.id ? await mine.outcome() : null;
    fail(outcome?.error ?? error);
  }
}

function heard(mine, samples) {
  if (current !== mine) return;
  if (state() === "waiting") {
    become("speaking", "Speaking");
    $("status").title = `Request ${mine.id}`;
  }
  wave.add(samples, mine.rate);
  player.push(samples.slice());
}

/** All audio is here, though not all has been heard. */
async function ended(mine) {
  const outcome = await mine.outcome();
  if (current !== mine) return;
  mine.finish = outcome?.finish_reason;
  if (state() === "speaking") become("speaking", "Speaking · all received");
}

const ENDINGS = {
  length: "cut at the frame limit",
  guard_length: "cut: it ran on beyond its text",
  guard_silence: "cut: it had fallen silent",
};

function summary() {
  const took = (current.done - current.asked) / 1000;
  const parts = [`${current.seconds.toFixed(2)} s in ${took.toFixed(2)} s`, `${current.rate / 1000} kHz`, `seed ${current.seed}`];
  if (ENDINGS[current.finish]) parts.push(ENDINGS[current.finish]);
  return parts.join(" · ");
}

function stop() {
  if (state() !== "waiting" && state() !== "speaking") return;
  const whole = current.done !== null;
  halt();
  if (!whole) current.done = performance.now();
  become("stopped", whole ? summary() : `Stopped after ${current.seconds.toFixed(2)} s of audio`);
  paint();
}

/** Silence, and no more work on the server. */
function halt() {
  if (current?.done === null) current.cancel();
  player.stop();
}

function replay() {
  clearError();
  sound = null;
  player.open();
  player.start(current.rate, 0);
  player.push(current.all);
  player.end();
  become("speaking", summary());
  paint();
}

/** The audio thread reports. */
function onSound(report) {
  sound = report;
  if (report.phase === "idle" && state() === "speaking" && current.done !== null) become("done", summary());
}

// -- what is shown while it happens --

const number = (value, digits, unit = "") => (value === null ? "–" : `${value.toFixed(digits)}${unit}`);

function paint() {
  const live = state() === "waiting" || state() === "speaking";
  $("ttfp").textContent = number(current.ttfp, 0, " ms");
  $("rtf").textContent = number(current.rtf, 2);
  $("lead").textContent = number(sound && live ? sound.lead : null, 1, " s");
  $("underruns").textContent = number(sound && sound.underruns, 0);
  $("underruns").classList.toggle("bad", Boolean(sound?.underruns));
  wave.played = state() === "done" ? Infinity : (sound?.played ?? 0);
  wave.draw();
  if (live) requestAnimationFrame(() => paint());
}

function fail(error) {
  if (error.status === 401) {
    $("key-field").hidden = false;
    $("key").focus();
  }
  $("error").textContent = error.message;
  $("error").hidden = false;
  $("error").scrollIntoView({ block: "nearest" });
  form.blame(error.param);
  if (state() === "waiting" || state() === "speaking") {
    if (current.done === null) current.done = performance.now();
    become("failed", current.length ? "Not spoken to the end." : "Nothing was spoken.");
    paint();
  }
}

function clearError() {
  $("error").hidden = true;
  form.blame(null);
}

// -- the server --

let poll;

async function connect() {
  clearTimeout(poll);
  try {
    const model = await form.load();
    const ready = model.phase === "ready";
    $("model-state").textContent = ready ? `${model.id} · ${model.sample_rate / 1000} kHz` : `${model.id} is ${model.phase}…`;
    $("speak").disabled = !ready;
    if (!ready) poll = setTimeout(connect, POLL);
  } catch (error) {
    $("model-state").textContent = "Not connected";
    if (error.status === 401) fail(error);
    else poll = setTimeout(connect, POLL);
  }
}

async function keep() {
  clearError();
  const fields = new FormData();
  fields.set("name", $("keep-name").value);
  fields.set("consent", $("keep-consent").value);
  fields.set("ref_text", $("transcript").value);
  if (reference.blob) fields.set("audio_sample", reference.blob, "reference");
  try {
    await ask("v1/audio/voices", { method: "POST", body: fields });
    await form.load();
    $("status").textContent = `Kept as ${$("keep-name").value}: it is among the voices now.`;
  } catch (error) {
    fail(error);
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("speak").disabled) speak();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  if (event.key === "Escape") stop();
});
$("stop").addEventListener("click", stop);
$("replay").addEventListener("click", replay);
$("keep-button").addEventListener("click", keep);
$("key").addEventListener("change", () => {
  sessionStorage.setItem("stentor-key", $("key").value);
  clearError();
  connect();
});
$("model").addEventListener("change", connect);
connect();
