// The settings as a program that gets the same speech from the API.

import { BASE, key } from "./server.js";

const SPEECH = new URL("v1/audio/speech", BASE).href;
const OPENAI = ["model", "voice", "input", "instructions", "speed", "response_format"]; // arguments of OpenAI's SDK
const FILE = "reference.wav"; // stands for a recording

const clones = (body) => "ref_audio" in body;

/** Recordings in JSON, which are empty there: an expression in place of each. */
const filled = (data, expression) => data.replace(/"(ref_audio|prompt_audio)": ""/g, (_, name) => `"${name}": ${expression}`);

function curl(body) {
  let data = JSON.stringify(body, null, 2);
  let end = "'JSON'"; // the shell leaves the data as it is
  if (clones(body)) {
    data = filled(data.replace(/[\\$`]/g, "\\$&"), `"$(base64 < ${FILE} | tr -d '\\n')"`);
    end = "JSON";
  }
  const options = ["-H 'Content-Type: application/json'", "-o speech.mp3", `-d @- <<${end}`];
  if (key.value) options.unshift('-H "Authorization: Bearer $STENTOR_API_KEY"');
  return `${[`curl ${SPEECH}`, ...options].join(" \\\n  ")}\n${data}\nJSON`;
}

function python(body) {
  const value = (name) => ({ true: "True", false: "False" })[body[name]] ?? JSON.stringify(body[name]);
  const own = OPENAI.filter((name) => name in body).map((name) => `    ${name}=${value(name)},`);
  const others = Object.keys(body).filter((name) => !OPENAI.includes(name));
  const extra = filled(others.map((name) => `"${name}": ${value(name)}`).join(", "), "recording");
  return [
    ...(clones(body) ? ["import base64"] : []),
    ...(key.value ? ["import os"] : []),
    ...(clones(body) || key.value ? [""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${new URL("v1", BASE).href}", api_key=${key.value ? 'os.environ["STENTOR_API_KEY"]' : '"any"'})`,
    ...(clones(body) ? [`with open("${FILE}", "rb") as file:`, "    recording = base64.b64encode(file.read()).decode()"] : []),
    "with client.audio.speech.with_streaming_response.create(",
    ...own,
    ...(extra ? [`    extra_body={${extra}},`] : []),
    ") as speech:",
    '    speech.stream_to_file("speech.mp3")',
  ].join("\n");
}

function javascript(body) {
  const data = filled(JSON.stringify(body, null, 2), "recording").replaceAll("\n", "\n  ");
  const authorization = key.value ? ", Authorization: `Bearer ${process.env.STENTOR_API_KEY}`" : "";
  return [
    `import { ${clones(body) ? "readFile, " : ""}writeFile } from "node:fs/promises";`,
    "",
    ...(clones(body) ? [`const recording = (await readFile("${FILE}")).toString("base64");`] : []),
    `const response = await fetch("${SPEECH}", {`,
    '  method: "POST",',
    `  headers: { "Content-Type": "application/json"${authorization} },`,
    `  body: JSON.stringify(${data}),`,
    "});",
    "if (!response.ok) throw new Error(await response.text());",
    'await writeFile("speech.mp3", Buffer.from(await response.arrayBuffer()));',
  ].join("\n");
}

const WRITERS = { curl, python, javascript };

/** @param {object} settings a request body in which recordings are empty @param {string} language curl, python or javascript */
export function program({ model, voice = "default", ...rest }, language) {
  return WRITERS[language]({ model, voice, ...rest, response_format: "mp3" });
}
