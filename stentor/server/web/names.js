// Names for people in place of paths and ids.

/** The parts of a model's id from the last on: of a directory, a Hub id, or a snapshot in the Hub's cache. */
function parts(id) {
  const cached = id.match(/models--([^/\\]+?)--([^/\\]+)[/\\]snapshots[/\\]/);
  const path = cached ? `${cached[1]}/${cached[2]}` : id;
  return path.split(/[/\\]+/).filter(Boolean).reverse();
}

/** Map of each id to its last part, or to as many parts as tell it from the others. */
export function shortNames(ids) {
  const names = new Map();
  for (const id of ids) {
    const mine = parts(id);
    const name = (count) => mine.slice(0, count).reverse().join("/");
    const taken = (count) => ids.some((other) => other !== id && parts(other).slice(0, count).reverse().join("/") === name(count));
    let count = 1;
    while (count < mine.length && taken(count)) count++;
    names.set(id, name(count) || id);
  }
  return names;
}

/** "english" as "English". A name that holds capitals is left as it is. */
export function capital(name) {
  return name && name === name.toLowerCase() ? name[0].toUpperCase() + name.slice(1) : name;
}

/** Seconds as minutes and seconds: 65 is "1:05". */
export function clock(seconds) {
  const whole = Math.floor(seconds + 0.05);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** Seconds as a person says them: "4 s", "3 min". */
export function about(seconds) {
  return seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
}
