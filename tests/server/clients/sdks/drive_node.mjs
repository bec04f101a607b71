// The OpenAI SDK for Node and Vercel's AI SDK: list, speak, stream, cancel. Prints what came as JSON.
// Needs: npm install openai ai @ai-sdk/openai
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import * as ai from "ai";
import OpenAI from "openai";

const url = process.argv[2] + "/v1";
const hex = (bytes) => Buffer.from(bytes.slice(0, 4)).toString("hex");
const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;

const client = new OpenAI({ baseURL: url, apiKey: "any", maxRetries: 0 });
const got = { node: process.version, openai: version("openai"), ai: version("ai"), "@ai-sdk/openai": version("@ai-sdk/openai") };
got.models = (await client.models.list()).data.map((m) => m.id);
const whole = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input: "Good morning." });
got.default = hex(new Uint8Array(await whole.arrayBuffer()));
const streamed = await client.audio.speech.create({
  model: "gpt-4o-mini-tts", voice: "coral", input: "Good morning.", response_format: "wav", stream_format: "audio",
});
got.streamed = 0;
for await (const part of streamed.body) got.streamed += part.length;
const stop = new AbortController();
const left = await client.audio.speech.create(
  { model: "tts-1", voice: "alloy", input: "Good morning.", response_format: "pcm", stream_format: "audio" },
  { signal: stop.signal },
);
got.cancelled = (await left.body.getReader().read()).value.length > 0;
stop.abort();

const speak = ai.generateSpeech ?? ai.experimental_generateSpeech;
const models = createOpenAI({ baseURL: url, apiKey: "any" });
const spoken = await speak({ model: models.speech("tts-1"), text: "Good morning.", voice: "alloy" });
got.vercel = { type: spoken.audio.mediaType, start: hex(spoken.audio.uint8Array) };
const wav = await speak({
  model: models.speech("gpt-4o-mini-tts"), text: "Good morning.", voice: "nova", outputFormat: "wav", speed: 1.2,
  instructions: "Speak slowly.",
});
got.vercelWav = { type: wav.audio.mediaType, start: hex(wav.audio.uint8Array) };
console.log(JSON.stringify(got));
