/** Jobs of an array as counts: in words, and as a bar with a part for each state. */
import { html } from "htm/preact";
import { number, words } from "./format.js";

/** State of a job -> the letter of its cell. */
export const JOB_LETTERS = {
  PENDING: "P", QUEUED: "Q", PREEMPTED: "E", ALLOCATED: "L", STARTING: "S", RUNNING: "R", COMPLETED: "C", FAILED: "F", CANCELLED: "X",
};

/** [state, how many], in the order in which a job passes through them; only those that occur. */
export function countsOf(array) {
  const known = Object.values(array.counts).reduce((sum, many) => sum + many, 0);
  const counts = { ...array.counts, PENDING: (array.counts.PENDING ?? 0) + array.size - known };
  return Object.keys(JOB_LETTERS).map((state) => [state, counts[state] ?? 0]).filter(([, many]) => many > 0);
}

/** The bar. */
export function CountBar({ array }) {
  const counts = countsOf(array);
  const said = counts.map(([state, many]) => `${number(many, 0)} ${words(state)}`).join(", ");
  return html`<span class="count-bar" role="img" aria-label=${said} title=${said}>
    ${counts.map(([state, many]) => html`<i key=${state} class="job-${state}" style=${{ flexGrow: many }}></i>`)}</span>`;
}
