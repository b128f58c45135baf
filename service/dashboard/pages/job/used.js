/** What a job's attempts used, and what the one that runs uses now. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { get } from "../../api/http.js";
import { useLoader } from "../../api/poll.js";
import { duration, mib, number } from "../../parts/format.js";
import { Failed, Loading, Panel } from "../../parts/page.js";
import { ENDED } from "../../parts/states.js";

/** The panel. */
export function Used({ job }) {
  const [usage, setUsage] = useState(null);
  const [problem, setProblem] = useState(null);
  useLoader(
    async () => {
      try {
        setUsage(await get(`/v1/jobs/${job.id}/usage`));
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: ENDED.includes(job.state) ? 600_000 : 5000 },
    [job.id, job.attempt, job.state],
  );
  return html`<${Panel} title="Usage and energy">
    <${Failed} problem=${problem} />
    ${!usage ? !problem && html`<${Loading} />` : html`<${Attempts} usage=${usage} />`}
  <//>`;
}

function Attempts({ usage }) {
  const { running } = usage;
  const sum = (ranks, name) => ranks.reduce((total, rank) => total + rank[name], 0);
  const rows = usage.attempts.map((one) => ({ ...one, key: one.attempt, label: one.attempt, seconds: one.gpu_seconds }));
  if (running) {
    const { ranks } = running;
    const weight = sum(ranks, "gpu_seconds");
    const mean = weight ? ranks.reduce((total, rank) => total + (rank.mean_utilization_percent ?? 0) * rank.gpu_seconds, 0) / weight : null;
    rows.push({ key: "now", label: `${running.attempt} (so far)`, gpus: running.gpus.length, seconds: weight, mean_utilization_percent: mean,
      peak_gpu_memory_mib: Math.max(0, ...ranks.map((rank) => rank.peak_gpu_memory_mib ?? 0)), energy_j: sum(ranks, "energy_j"), cpu_s: sum(ranks, "cpu_s"),
      peak_memory_mib: Math.max(0, ...ranks.map((rank) => rank.peak_memory_mib)), ecc_errors: sum(ranks, "ecc_errors"), throttled_s: sum(ranks, "throttled_s") });
  }
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Usage, can be scrolled"><table>
    <thead><tr>${["Attempt", "GPUs", "GPU time", "Utilisation", "GPU memory, peak", "Energy", "CPU time", "Memory, peak", "ECC errors", "Throttled"].map((name, index) => html`<th scope="col" class=${index ? "num" : ""} key=${name}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}><th scope="row">${row.label}</th><td class="num">${row.gpus}</td><td class="num">${duration(row.seconds)}</td>
      <td class="num">${row.mean_utilization_percent === null ? "–" : `${number(row.mean_utilization_percent)} %`}</td><td class="num">${mib(row.peak_gpu_memory_mib)}</td>
      <td class="num">${energy(row.energy_j)}</td><td class="num">${duration(row.cpu_s)}</td><td class="num">${mib(row.peak_memory_mib)}</td>
      <td class="num">${row.ecc_errors}</td><td class="num">${duration(row.throttled_s)}</td></tr>`)}</tbody>
  </table></div>`;
}

/** Joules as one reads them: kJ, or kWh once it is worth money. */
function energy(joules) {
  return joules >= 3.6e6 ? `${number(joules / 3.6e6, 2)} kWh` : `${number(joules / 1000, 1)} kJ`;
}
