/** The steps of a pipeline as a graph from left to right: each step stands right of all that it waits for. */
import { useMemo } from "preact/hooks";
import { html } from "htm/preact";
import { words } from "./format.js";

const BOX = { width: 156, height: 46 };
const GAP = { x: 44, y: 18 };
const PAD = 6;

/** `steps`: of an answer of `/v1/pipelines/ID`, each after those that it waits for. */
export function StepGraph({ steps }) {
  const { places, width, height } = useMemo(() => layout(steps), [steps]);
  const said = steps.map((step) => `${step.name}: ${words(step.state)}${step.after.length ? `, after ${step.after.join(" and ")}` : ""}`).join("; ");
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Graph of steps, can be scrolled">
    <svg class="steps" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img" aria-label=${said}>
      ${steps.flatMap((step) => step.after.map((before) => html`<path key=${`${before}>${step.name}`} class="edge" d=${curve(places.get(before), places.get(step.name))} />`))}
      ${steps.map((step) => {
        const { x, y } = places.get(step.name);
        return html`<g key=${step.name} class="step step-${step.state}"><title>${step.name}: ${words(step.state)}${step.message ? `, ${step.message}` : ""}</title>
          <rect x=${x} y=${y} width=${BOX.width} height=${BOX.height} rx="5" />
          <text class="name" x=${x + 10} y=${y + 19}>${short(step.name)}</text>
          <text x=${x + 10} y=${y + 36}>${words(step.state)}${step.total > 1 ? `, ${step.completed} of ${step.total}` : ""}</text></g>`;
      })}
    </svg>
  </div>`;
}

function layout(steps) {
  const column = new Map();
  const rows = [];
  const places = new Map();
  for (const step of steps) {
    const at = Math.max(-1, ...step.after.map((name) => column.get(name) ?? -1)) + 1;
    column.set(step.name, at);
    const row = (rows[at] ??= 0);
    rows[at] += 1;
    places.set(step.name, { x: PAD + at * (BOX.width + GAP.x), y: PAD + row * (BOX.height + GAP.y) });
  }
  const deepest = Math.max(1, ...rows);
  return { places, width: 2 * PAD + rows.length * (BOX.width + GAP.x) - GAP.x, height: 2 * PAD + deepest * (BOX.height + GAP.y) - GAP.y };
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const middle = x2 - GAP.x / 2;
  return `M ${x1} ${y1} H ${middle - GAP.x / 2} C ${middle} ${y1}, ${middle} ${y2}, ${x2} ${y2}`;
}

function short(name) {
  return name.length > 19 ? `${name.slice(0, 18)}…` : name;
}
