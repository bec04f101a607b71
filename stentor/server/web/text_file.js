// A text file that is dropped on the page.

import { Wrong } from "./options.js";

const MOST_BYTES = 4e6; // more than any server speaks at once

/** The text of a file, in UTF-8 or UTF-16. @throws {Wrong} if it is none */
export async function droppedText(file) {
  if (file.size > MOST_BYTES) throw new Wrong(`${file.name} is too large: ${Math.round(file.size / 1e6)} MB.`, "input");
  const data = new Uint8Array(await file.arrayBuffer());
  const utf16 = { "255,254": "utf-16le", "254,255": "utf-16be" }[data.slice(0, 2).join()];
  try {
    const text = new TextDecoder(utf16 ?? "utf-8", { fatal: true }).decode(data);
    if (!text.includes("\0")) return text;
  } catch {
    // not in this encoding
  }
  throw new Wrong(`${file.name} is no text file.`, "input");
}
