/** Where a job runs, on the topology of its hosts, and why there: the scores of the winner and the runners-up. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { get } from "../../api/http.js";
import { useLoader } from "../../api/poll.js";
import { number, words } from "../../parts/format.js";
import { Failed, Panel, sentence } from "../../parts/page.js";
import { Link } from "../../parts/router.js";
import { HOLDING } from "../../parts/states.js";
import { Topology } from "../../parts/topology.js";

/** More hosts than these are named, not drawn. */
const DRAWN = 4;

/** The panel. */
export function Placed({ job }) {
  const { placement } = job;
  const slices = placement.slices;
  const [all, setAll] = useState(false);
  const drawn = all ? slices : slices.slice(0, DRAWN);
  return html`<${Panel} title="Placement">
    <p>${sentence(placement.why)} <span class="muted">Level ${words(placement.level)}, ${number(placement.bandwidth_gb_s)} GB/s, decided in ${number(placement.decided_in_ms, 2)} ms.</span></p>
    ${drawn.map((part, index) => html`<${Slice} key=${`${part.host}/${part.group}/${index}`} part=${part} holds=${HOLDING.includes(job.state)} />`)}
    ${slices.length > drawn.length && html`<p><button type="button" onClick=${() => setAll(true)}>Show ${slices.length - drawn.length} more hosts</button></p>`}
    <${Scores} scores=${placement.scores} />
  <//>`;
}

function Slice({ part, holds }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  useLoader(
    async () => {
      try {
        const [host, page] = await Promise.all([get(`/v1/hosts/${encodeURIComponent(part.host)}`), get("/v1/gpus", { host: part.host, limit: 1000 })]);
        setFound({ host, gpus: page.items });
        setProblem(null);
      } catch (error) {
        setProblem(error);
      }
    },
    { every: 15_000, concerns: (event) => event.host === part.host || event.kind === "gang.released", settle: 1000 },
    [part.host, holds],
  );
  const held = [part.group && `group ${part.group}`, part.cpus && `${part.cpus} CPUs`, part.ram_mib && `${number(part.ram_mib / 1024)} GiB of memory`].filter(Boolean);
  return html`<div class="slice">
    <h3><${Link} to=${`/hosts/${encodeURIComponent(part.host)}`}>${part.host}<//> <span class="muted">${held.join(", ")}</span></h3>
    <${Failed} problem=${problem} />
    ${found && html`<${Topology} host=${found.host} gpus=${found.gpus} marked=${part.gpu_indices} mark=${holds ? "This job has" : "This job had"} />`}
  </div>`;
}

function Scores({ scores }) {
  if (!scores?.rows?.length) return null;
  const parts = [...new Set(scores.rows.flatMap((row) => Object.keys(row.parts)))];
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Scores, can be scrolled">
    <table class="scores">
      <caption>Scores of the winner and the next ones${scores.others ? `; ${scores.others} more are not shown` : ""}</caption>
      <thead><tr><th scope="col">Candidate</th><th scope="col" class="num">Total</th>${parts.map((name) => html`<th scope="col" class="num" key=${name}>${words(name)}</th>`)}</tr></thead>
      <tbody>${scores.rows.map((row, index) => html`<tr key=${row.candidate}>
        <th scope="row">${row.candidate}${index === 0 ? html` <span class="state good">chosen</span>` : ""}</th>
        <td class="num">${number(row.total, 3)}</td>
        ${parts.map((name) => html`<td class="num" key=${name}>${number(row.parts[name] ?? 0, 3)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}
