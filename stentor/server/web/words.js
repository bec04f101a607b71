// What went wrong, in words for people: no field of the API, no status, no code.

import { about } from "./names.js";
import { Wrong, title } from "./options.js";
import { Refused } from "./server.js";

const FIELDS = {
  input: "The text",
  text: "The text",
  model: "The model",
  voice: "The voice",
  language: "The language",
  instructions: "The description of the voice",
  speed: "The speed",
  response_format: "The format",
  ref_audio: "The recording",
  prompt_audio: "The recording",
  audio_sample: "The recording",
  reference: "The recording",
  ref_text: "The transcript of the recording",
  prompt_text: "The transcript of the recording",
  name: "The name",
  consent: "The consent",
};

const CODES = {
  invalid_api_key: "This server requires a key, and the key is wrong.",
  model_not_found: "The server no longer has this model. Choose another one.",
  engine_error: "The server failed while it was speaking. Try again. Its log says why.",
  internal_error: "The server failed. Try again. Its log says why.",
  request_timeout: "This took longer than the server allows. Try a shorter text.",
  body_too_large: "That is more than the server takes at once. Choose a shorter recording or text.",
  origin_not_allowed: "The server does not take requests from pages of this address. Open its own page.",
  too_many_voices: "The server keeps as many voices as it may. One has to be deleted first.",
  voices_full: "The server has no room for another voice.",
  voices_not_writable: "The server cannot keep voices at the moment.",
};

const STATUSES = {
  401: CODES.invalid_api_key,
  403: "The server does not allow this.",
  404: "The server does not know what was asked for. It may have been replaced: try again.",
  408: "The connection is too slow: the server stopped waiting.",
  413: CODES.body_too_large,
  504: CODES.request_timeout,
  507: CODES.voices_full,
};

const VERB = /^(must|has|is|holds|needs|takes|cannot|may|does|stands|names)\b/;

/** The name of a field on this page, at the beginning of a sentence. */
function called(param) {
  return FIELDS[param.split(".")[0]] ?? `“${title(param)}”`;
}

/** The server's words about a field, as a sentence. */
function aboutField(message, param) {
  let rest = message.startsWith(`${param}: `) ? message.slice(param.length + 2) : message;
  for (const name of Object.keys(FIELDS).filter((f) => f.includes("_"))) {
    rest = rest.replaceAll(name, FIELDS[name].replace("The", "the"));
  }
  rest = rest.replace(/^audio /, "").replace(/, got (.*)$/, ", and it is $1");
  return ended(VERB.test(rest) ? `${called(param)} ${rest}` : `${called(param)}: ${rest}`);
}

const ended = (sentence) => (/[.!?…]$/.test(sentence) ? sentence : `${sentence}.`);

const later = (seconds) => (seconds ? ` Try again in about ${about(seconds)}.` : " Try again in a moment.");

function refused(error) {
  const { status, code, param, message } = error;
  if (code === "not_ready") return `The model is not ready yet.${later(error.retryAfter)}`;
  if (status === 429 || code === "queue_full" || code === "bodies_in_flight") {
    return `The server is busy with other requests.${later(error.retryAfter)}`;
  }
  if (CODES[code]) return CODES[code];
  if (param && message) return aboutField(message, param);
  if (STATUSES[status]) return STATUSES[status];
  if (status >= 500) return "The server, or something between it and this page, has failed. Try again in a moment.";
  return "The server did not accept this.";
}

/** One or two sentences about an error. @param {boolean} midway whether some of the speech had come */
export function inWords(error, midway = false) {
  if (error instanceof Wrong) return error.message;
  if (!(error instanceof Refused)) return "Something on this page has failed. Reload it and try again.";
  if (!error.lost) return refused(error);
  if (midway) return "The connection to the server was lost. What came until then can be heard and saved.";
  return "The server did not answer. Try again.";
}

const DEVICES = {
  NotAllowedError: "This page may not use the microphone. Allow it in the browser, or choose a file.",
  NotFoundError: "There is no microphone. Choose a file instead.",
  NotReadableError: "Another program is using the microphone. Close it there, or choose a file.",
};

/** One or two sentences about why there is no recording. */
export function aboutMicrophone(error) {
  return DEVICES[error.name] ?? "The microphone cannot be used. Choose a file instead.";
}
