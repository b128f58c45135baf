/** One host: its topology, its GPUs, who holds them, and what operators may do. */
import { useState } from "preact/hooks";
import { html } from "htm/preact";
import { get } from "../api/http.js";
import { useLoader } from "../api/poll.js";
import { count, duration, mib, model } from "../parts/format.js";
import { shareOf } from "../parts/jobs.js";
import { Operate } from "../parts/operate.js";
import { Failed, Loading, Page, Panel } from "../parts/page.js";
import { Link } from "../parts/router.js";
import { HOLDING, shownState, State } from "../parts/states.js";
import { Topology } from "../parts/topology.js";

/** The page `/hosts/NAME`. */
export function Host({ name }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = async () => {
    try {
      const [host, page, jobs] = await Promise.all([
        get(`/v1/hosts/${encodeURIComponent(name)}`),
        get("/v1/gpus", { host: name, limit: 1000 }),
        get("/v1/jobs", { state: HOLDING, limit: 1000 }),
      ]);
      setFound({ host, gpus: page.items, names: new Map(jobs.items.map((job) => [job.id, job.spec.name])) });
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  const concerns = (event) => event.host === name || event.data?.hosts?.includes(name) || event.kind.startsWith("job.");
  useLoader(load, { every: 5000, concerns }, [name]);
  if (!found) {
    return html`<${Page} title="Host ${name}"><${Failed} problem=${problem} />${!problem && html`<${Loading} />`}<//>`;
  }
  const { host, gpus } = found;
  return html`<${Page} title="Host ${name}" actions=${html`<${Operate} what="host ${name}" state=${host.state} path=${`/v1/hosts/${encodeURIComponent(name)}`} after=${load} />`}>
    <${Failed} problem=${problem} />
    <p class="lead"><${State} of=${host.state} /> ${host.reason ?? ""}</p>
    <${Facts} host=${host} gpus=${gpus} />
    <${Panel} title="Topology"><${Topology} host=${host} gpus=${gpus} /><//>
    <${Panel} title="GPUs"><${Gpus} gpus=${gpus} names=${found.names} after=${load} /><//>
    ${host.missing_guarantees.length > 0 &&
    html`<${Panel} title="What this host cannot guarantee"><ul>${host.missing_guarantees.map((text) => html`<li key=${text}>${text}</li>`)}</ul><//>`}
  <//>`;
}

function Facts({ host, gpus }) {
  const facts = [
    ["Machine", host.machine + (host.simulated ? " (simulated)" : "")],
    ["Model", gpus.length ? model(gpus[0].info.model) : "–"],
    ["Free", `${host.gpus_free} of ${host.gpus_total}`],
    ["Leaf, spine", [host.leaf, host.spine].filter(Boolean).join(", ") || "–"],
    ["NVLink domain", host.nvlink_domain ?? "–"],
    ["Driver, CUDA", [host.driver_version, host.cuda_version].filter(Boolean).join(", ") || "–"],
    ["Isolation", host.isolation],
    ["Lease", host.lease_remaining_s > 0 ? `${duration(host.lease_remaining_s)} left` : "ended"],
  ];
  return html`<dl class="facts small">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Gpus({ gpus, names, after }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="GPUs, can be scrolled">
    <table class="stack">
      <thead><tr><th scope="col">GPU</th><th scope="col">State</th><th scope="col">Held by</th><th scope="col" class="num">Use</th>
        <th scope="col" class="num">Memory</th><th scope="col" class="num">Temp.</th><th scope="col" class="num">Power</th>
        <th scope="col" class="num">Faults</th><th scope="col">For operators</th></tr></thead>
      <tbody>${gpus.map((gpu) => html`<tr key=${gpu.info.uuid}>
        <th scope="row" title=${gpu.info.uuid}><span class="only-phone">GPU </span>${gpu.info.index}</th>
        <td><${State} of=${shownState(gpu)} /> ${gpu.reason && html`<span class="muted">${gpu.reason}</span>`}</td>
        <td data-name="Held by">${gpu.holders.length ? gpu.holders.map((one) => html`<${Holder} key=${one.job_id} ...${one} name=${names.get(one.job_id)} />`) : html`<span class="muted">nobody</span>`}</td>
        <td class="num" data-name="Use">${gpu.utilization_percent ?? "–"} %</td>
        <td class="num" data-name="Memory">${mib(gpu.memory_used_mib)} / ${mib(gpu.info.memory_mib)}</td>
        <td class="num" data-name="Temp.">${gpu.temperature_c ?? "–"} °C</td>
        <td class="num" data-name="Power">${gpu.power_w === null ? "–" : Math.round(gpu.power_w)} W</td>
        <td class="num" data-name="Faults" title=${count(gpu.reset_count, "reset")}>${gpu.fault_count}</td>
        <td class="actions tight"><${Operate} what="GPU ${gpu.info.index} of ${gpu.host}" state=${gpu.state} path=${`/v1/gpus/${gpu.info.uuid}`} after=${after} /></td>
      </tr>`)}</tbody>
    </table>
  </div>`;
}

function Holder({ job_id: id, attempt, share, name }) {
  const part = share ? ` (${shareOf({ share })})` : "";
  if (id === "hidden") return html`<span title="a job of a namespace that you may not see">hidden</span>`;
  return html`<${Link} to=${`/jobs/${id}`} title=${id}>${name ?? id}<//><span class="muted"> attempt ${attempt}${part}</span>`;
}
