/**
 * Rows over one axis of time: what runs on the GPUs of each host, and when waiting jobs start.
 *
 * Rows are HTML, not one large drawing: the browser lays out and draws only those that are on the screen.
 */
import { html } from "htm/preact";
import { duration, time } from "./format.js";
import { Link } from "./router.js";

const STEPS_S = [60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800];

/** The axis: from a little before now to `ahead` seconds after it. Unix seconds. */
export function axisOf(now, ahead) {
  const from = now - ahead * 0.12;
  const to = now + ahead;
  const step = STEPS_S.find((one) => (to - from) / one <= 8) ?? STEPS_S[STEPS_S.length - 1];
  const offset = new Date(now * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at < to; at += step) ticks.push(at);
  const place = (at) => ((Math.min(Math.max(at, from), to) - from) / (to - from)) * 100;
  return { now, from, to, ticks, place, step };
}

/** The times above the rows. */
export function Scale({ axis }) {
  const text = (at) => (axis.step >= 86_400 ? time(at).slice(0, 10) : time(at).slice(-8, -3));
  return html`<div class="gantt-row scale" aria-hidden="true"><div class="gantt-name"></div><div class="gantt-track">
    ${axis.ticks.filter((at) => axis.place(at) > 2 && axis.place(at) < 97).map((at) => html`<span key=${at} class="gantt-tick" style=${{ left: `${axis.place(at)}%` }}>${text(at)}</span>`)}
  </div></div>`;
}

/** The lines behind the bars of a row: one for each tick, and one for now. */
function Lines({ axis }) {
  return html`${axis.ticks.map((at) => html`<i key=${at} class="line" style=${{ left: `${axis.place(at)}%` }}></i>`)}
    <i class="line now" style=${{ left: `${axis.place(axis.now)}%` }}></i>`;
}

/**
 * One row.
 *
 * @param {{axis: any, name: any, lanes?: number, laneHeight?: number, bars: {key: string, from: number, to: number|null, kind: string,
 *   lane?: number, lanes?: number, text: string, tip: string, link?: string, between?: [number, number]}[]}} props
 *   to: null if it has no end that is known. lanes: how many lanes a bar covers, from `lane` on.
 */
export function Row({ axis, name, lanes = 1, laneHeight = 22, bars }) {
  const height = lanes * laneHeight;
  return html`<li class="gantt-row">
    <div class="gantt-name">${name}</div>
    <div class="gantt-track" style=${{ height: `${height}px` }}>
      <${Lines} axis=${axis} />
      ${bars.map((bar) => {
        const left = axis.place(bar.from);
        const width = Math.max(0.4, axis.place(bar.to ?? axis.to) - left);
        const style = { left: `${left}%`, width: `${width}%`, top: `${(bar.lane ?? 0) * laneHeight + 1}px`, height: `${(bar.lanes ?? 1) * laneHeight - 2}px` };
        const className = `gantt-bar ${bar.kind} ${bar.to === null ? "open" : ""}`;
        return html`
          ${bar.between && html`<i key=${`${bar.key}-between`} class="whisker" style=${{ left: `${axis.place(bar.between[0])}%`, width: `${Math.max(0.3, axis.place(bar.between[1]) - axis.place(bar.between[0]))}%`, top: `${laneHeight / 2}px` }}></i>`}
          ${bar.link
            ? html`<${Link} key=${bar.key} to=${bar.link} class=${className} style=${style} title=${bar.tip} aria-label=${bar.tip}>${bar.text}<//>`
            : html`<span key=${bar.key} class=${className} style=${style} title=${bar.tip}>${bar.text}</span>`}`;
      })}
    </div>
  </li>`;
}

/** "from 12:00:00 until 14:00:00, 2 h". */
export function span(from, to) {
  return to === null ? `since ${time(from)}, without a time limit` : `from ${time(from)} until ${time(to)} at the latest, ${duration(to - from)}`;
}
