/** Words of a shell, and how durations and sizes are read: as the command line does it. */

/** Split a command line into words, as a POSIX shell does with quotes and backslashes. Raises an Error. */
export function split(text) {
  const words = [];
  let word = null;
  let quote = null;
  for (let at = 0; at < text.length; at += 1) {
    const one = text[at];
    if (quote === "'" || (quote === '"' && one !== "\\")) {
      if (one === quote) quote = null;
      else word += one;
    } else if (one === "\\") {
      at += 1;
      if (at === text.length) throw new Error("a word must follow the last backslash");
      word = (word ?? "") + (quote && !'"\\$`'.includes(text[at]) ? `\\${text[at]}` : text[at]);
    } else if (one === "'" || one === '"') {
      quote = one;
      word ??= "";
    } else if (/\s/.test(one)) {
      if (word !== null) words.push(word);
      word = null;
    } else word = (word ?? "") + one;
  }
  if (quote) throw new Error(`the quote ${quote} is not closed`);
  if (word !== null) words.push(word);
  return words;
}

/** A word as a shell must read it to get it back. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

const UNITS = { d: 86_400, h: 3600, m: 60, s: 1 };

/** Seconds: "90m", "1h30m", "45s", "01:30:00", "1-12:00:00", "3600". Null for an empty text. Raises an Error. */
export function seconds(text) {
  const trimmed = text.trim();
  if (!trimmed) return null;
  if (/^\d+$/.test(trimmed)) return Number(trimmed);
  const clock = /^(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?$/.exec(trimmed);
  if (clock) {
    const [days, hours, minutes, rest] = clock.slice(1).map((part) => Number(part ?? 0));
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest;
  }
  const units = /^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$/.exec(trimmed);
  if (!units) throw new Error(`${trimmed} is no time: write 90m, 1h30m, 45s, 01:30:00 or 1-12:00:00`);
  return Object.values(UNITS).reduce((sum, unit, index) => sum + Number(units[index + 1] ?? 0) * unit, 0);
}

/** Seconds as the command line and this form read them: "1h30m". */
export function written(total) {
  let rest = total;
  let text = "";
  for (const [name, unit] of Object.entries(UNITS)) {
    const many = Math.floor(rest / unit);
    if (many) text += `${many}${name}`;
    rest -= many * unit;
  }
  return text || "0s";
}

/** MiB: "16GiB", "16g", "16384MiB". Null for an empty text. Raises an Error. */
export function size(text) {
  const trimmed = text.trim();
  if (!trimmed) return null;
  const found = /^(\d+(?:\.\d+)?)\s*([mgt])(?:ib)?$/i.exec(trimmed);
  if (!found) throw new Error(`${trimmed} is no size: write a number with its unit, like 16GiB or 16384MiB`);
  return Math.ceil(Number(found[1]) * { m: 1, g: 1024, t: 1024 * 1024 }[found[2].toLowerCase()]);
}
