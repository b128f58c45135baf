/** How numbers, times and sizes are written. */
import { now } from "../api/clock.js";

const DAY_S = 86_400;

/** "3 s", "4 min 5 s", "2 h 10 min", "3 d 4 h": at most two units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return joined(s, 60, "min", 1, "s");
  if (s < DAY_S) return joined(s, 3600, "h", 60, "min");
  return joined(s, DAY_S, "d", 3600, "h");
}

function joined(seconds, large, largeName, small, smallName) {
  const rounded = Math.round(seconds / small) * small;
  const rest = Math.round((rounded % large) / small);
  return `${Math.floor(rounded / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** A time of day, with the date unless it is today. `ms`: with milliseconds. */
export function time(at, { ms = false } = {}) {
  if (at === null || at === undefined) return "–";
  const date = at instanceof Date ? at : new Date(typeof at === "number" ? at * 1000 : at);
  const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  const exact = ms ? `${clock}.${String(date.getMilliseconds()).padStart(3, "0")}` : clock;
  const today = new Date(now()).toDateString() === date.toDateString();
  return today ? exact : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${exact}`;
}

/** "2 min ago", "in 3 h". */
export function ago(at) {
  const date = typeof at === "number" ? at * 1000 : Date.parse(at);
  const s = (now() - date) / 1000;
  if (Math.abs(s) < 1) return "now";
  return s < 0 ? `in ${duration(-s)}` : `${duration(s)} ago`;
}

/** A number with few digits: 0.25, 3.1, 1,234. */
export function number(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** "97 %". `ratio` is 0 to 1. */
export function percent(ratio, digits = 0) {
  return ratio === null || ratio === undefined ? "–" : `${number(ratio * 100, digits)} %`;
}

/** "56 GiB". */
export function mib(value) {
  if (value === null || value === undefined) return "–";
  return value < 1024 ? `${number(value, 0)} MiB` : `${number(value / 1024, value < 10_240 ? 1 : 0)} GiB`;
}

/** "1 GPU", "2 GPUs". */
export function count(amount, word, plural = `${word}s`) {
  return `${number(amount, 0)} ${amount === 1 ? word : plural}`;
}

/** The short name of a GPU's model: "H100 80GB HBM3". */
export function model(name) {
  return name.replace(/^NVIDIA /, "");
}

/** IN_USE as words: "in use". */
export function words(text) {
  return text.toLowerCase().replaceAll("_", " ");
}

/** Characters that show nothing but change the order of others, or hide. */
const UNSEEN = /[\p{Cf}\p{Zl}\p{Zp}]/u;
const ALL_UNSEEN = new RegExp(UNSEEN, "gu");

/** Whether a text has such characters. */
export function hides(text) {
  return UNSEEN.test(text);
}

/** A text of a user in which nothing can pretend to be something else: such characters are escapes, as in the command line. */
export function plain(text) {
  return hides(text) ? text.replace(ALL_UNSEEN, (one) => `\\u${one.codePointAt(0)?.toString(16).padStart(4, "0")}`) : text;
}

/** A specification as JSON. */
export function json(value) {
  return JSON.stringify(value, null, 2);
}

function two(part) {
  return String(part).padStart(2, "0");
}
