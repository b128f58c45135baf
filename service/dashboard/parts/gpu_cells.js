/** The GPUs of a host as a row of cells, coloured by what one wants to see. Each cell has a letter or a number, too. */
import { html } from "htm/preact";
import { count } from "./format.js";
import { shareOf } from "./jobs.js";
import { GPU_STATES, shownState } from "./states.js";

/** What cells can show. */
export const METRICS = { state: "State", utilization: "Utilisation", temperature: "Temperature" };

/** All cells of a host. For a screen reader they are one picture with a sentence. */
export function GpuCells({ gpus, metric }) {
  return html`<div class="cells" role="img" aria-label=${sentence(gpus, metric)}>
    ${gpus.map((gpu) => {
      const [text, kind] = CELL[metric](gpu);
      return html`<span key=${gpu.info.uuid} class="cell ${kind}" title=${tip(gpu)}>${text}</span>`;
    })}
  </div>`;
}

/** What the colours and letters mean. */
export function Legend({ metric }) {
  return html`<ul class="legend" aria-label="Meaning of the cells">
    ${LEGENDS[metric].map(([kind, text, meaning]) => html`<li key=${kind}><span class="cell ${kind}" aria-hidden="true">${text}</span>${meaning}</li>`)}
  </ul>`;
}

/** One GPU in a sentence, for the tip of a cell. */
export function tip(gpu) {
  const parts = [`GPU ${gpu.info.index}: ${GPU_STATES[shownState(gpu)][1]}`];
  if (gpu.reason) parts.push(gpu.reason);
  if (gpu.holders.length) parts.push(`held by ${gpu.holders.map((one) => one.job_id + (one.share ? ` (${shareOf(one)})` : "")).join(", ")}`);
  if (gpu.utilization_percent !== null) parts.push(`${gpu.utilization_percent} %, ${gpu.temperature_c} °C`);
  return parts.join(" · ");
}

const CELL = {
  state: (gpu) => [GPU_STATES[shownState(gpu)][0], `gpu-${shownState(gpu)}`],
  utilization: ({ utilization_percent: value }) =>
    value === null ? ["–", "none"] : [value, `level-${Math.min(4, Math.floor(value / 20))}`],
  temperature: ({ temperature_c: value }) => (value === null ? ["–", "none"] : [value, `heat-${heat(value)}`]),
};

const heat = (value) => [50, 65, 75, 85].filter((limit) => value >= limit).length;

const LEGENDS = {
  state: Object.entries(GPU_STATES).map(([state, [letter, meaning]]) => [`gpu-${state}`, letter, meaning]),
  utilization: ["0", "20", "40", "60", "80"].map((from, index) => [`level-${index}`, from, `from ${from} %`]),
  temperature: ["<50", "50", "65", "75", "85"].map((from, index) => [
    `heat-${index}`,
    from,
    index ? `from ${from} °C` : "below 50 °C",
  ]),
};

function sentence(gpus, metric) {
  if (!gpus.length) return "GPUs are not known yet";
  const counts = new Map();
  for (const gpu of gpus) {
    const [text] = CELL[metric](gpu);
    const name = metric === "state" ? GPU_STATES[shownState(gpu)][1] : `${text}${metric === "utilization" ? " %" : " °C"}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return `${count(gpus.length, "GPU")}: ${[...counts].map(([name, many]) => `${many} ${name}`).join(", ")}`;
}
