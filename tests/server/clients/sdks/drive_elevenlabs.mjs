// ElevenLabs' SDK for Node: lists, whole, streamed, with times, refused, cancelled. Prints what came as JSON.
// Needs: npm install @elevenlabs/elevenlabs-js
import { readFileSync } from "node:fs";
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js";

const text = "Good morning. How are you?";
const client = new ElevenLabsClient({ baseUrl: process.argv[2], apiKey: "any", maxRetries: 0 });
const speech = client.textToSpeech;

async function bytes(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

async function refused(voice, request) {
  try {
    await bytes(await speech.convert(voice, request));
    return "";
  } catch (error) {
    return `${error.statusCode} ${error.body.detail.message.split(":")[0]}`;
  }
}

const got = { version: JSON.parse(readFileSync("node_modules/@elevenlabs/elevenlabs-js/package.json")).version };
got.models = (await client.models.list()).map((model) => model.modelId);
got.voices = (await client.voices.getAll()).voices.map((voice) => voice.voiceId);
got.voice = (await client.voices.get("default")).name;
got.default = (await bytes(await speech.convert("default", { text }))).subarray(0, 2).toString("hex");
got.streamed = (await bytes(await speech.stream("default", { text, outputFormat: "pcm_16000", seed: 5 }))).length;
const timed = await speech.convertWithTimestamps("default", { text, outputFormat: "wav_24000" });
got.timed = {
  text: timed.alignment.characters.join(""),
  start: Buffer.from(timed.audioBase64, "base64").subarray(0, 4).toString("hex"),
};
got.lines = "";
for await (const line of await speech.streamWithTimestamps("default", { text, outputFormat: "pcm_16000" }))
  got.lines += (line.alignment?.characters ?? []).join("");
const inputs = [{ text: "Good morning.", voiceId: "default" }, { text: "How are you?", voiceId: "default" }];
got.dialogue = (await bytes(await client.textToDialogue.convert({ inputs, outputFormat: "pcm_16000" }))).length;
got.refused = [await refused("nobody", { text }), await refused("default", { text: "" })];
const stop = new AbortController();
const left = await speech.stream("default", { text, outputFormat: "pcm_16000" }, { abortSignal: stop.signal });
got.cancelled = (await left.getReader().read()).value.length > 0;
stop.abort();
console.log(JSON.stringify(got));
