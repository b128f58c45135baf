/** What broke: faults and losses by host, by GPU and by model. */
import { useEffect, useState } from "preact/hooks";
import { html } from "htm/preact";
import { get } from "../../api/http.js";
import { duration, model, number, percent } from "../../parts/format.js";
import { Empty, Panel } from "../../parts/page.js";
import { Link } from "../../parts/router.js";
import { shownState, State } from "../../parts/states.js";

/** GPUs are asked for of the hosts with most faults only. */
const MOST_HOSTS = 12;

/** `report`: the answer of `/v1/report`. */
export function Broken({ report }) {
  const hosts = report.hosts.filter((host) => host.gpu_faults || host.losses).sort((a, b) => b.gpu_faults + b.losses - a.gpu_faults - a.losses);
  const asked = hosts.slice(0, MOST_HOSTS).map((host) => host.host);
  const gpus = useGpus(asked);
  const between = (hours) => (hours === null ? "–" : duration(hours * 3600));
  return html`
    <${Panel} title="Faults by host">
      ${!hosts.length ? html`<${Empty}>No GPU fault and no lost host in this period.<//>` : html`
      <div class="scroll" tabindex="0" role="group" aria-label="Faults by host, can be scrolled"><table>
        <thead><tr><th scope="col">Host</th><th scope="col" class="num">GPUs</th><th scope="col" class="num">GPU faults</th><th scope="col" class="num">Lost</th><th scope="col" class="num">Time between them</th><th scope="col" class="num">Allocated</th></tr></thead>
        <tbody>${hosts.map((host) => html`<tr key=${host.host}><th scope="row"><${Link} to=${`/hosts/${encodeURIComponent(host.host)}`}>${host.host}<//></th><td class="num">${host.gpus}</td>
          <td class="num">${host.gpu_faults}</td><td class="num">${host.losses}</td><td class="num">${between(host.mtbf_h)}</td><td class="num">${percent(host.allocation_ratio)}</td></tr>`)}</tbody>
      </table></div>`}
    <//>
    ${gpus.length > 0 && html`<${Panel} title="Faults by GPU">
      <p class="muted small-text">Since each GPU was registered${hosts.length > MOST_HOSTS ? `, of the ${MOST_HOSTS} hosts with most faults` : ""}.</p>
      <div class="scroll" tabindex="0" role="group" aria-label="Faults by GPU, can be scrolled"><table>
        <thead><tr><th scope="col">GPU</th><th scope="col">State</th><th scope="col">Why</th><th scope="col" class="num">Faults</th><th scope="col" class="num">Resets</th></tr></thead>
        <tbody>${gpus.map((gpu) => html`<tr key=${gpu.info.uuid}><th scope="row" title=${gpu.info.uuid}>${gpu.host}:${gpu.info.index}</th><td><${State} of=${shownState(gpu)} /></td>
          <td class="wide-text">${gpu.reason ?? "–"}</td><td class="num">${gpu.fault_count}</td><td class="num">${gpu.reset_count}</td></tr>`)}</tbody>
      </table></div>
    <//>`}
    <${Panel} title="By GPU model">
      <div class="scroll" tabindex="0" role="group" aria-label="Models, can be scrolled"><table>
        <thead><tr><th scope="col">Model</th><th scope="col" class="num">GPUs</th><th scope="col" class="num">GPU hours</th><th scope="col" class="num">Faults</th><th scope="col" class="num">GPU time between faults</th></tr></thead>
        <tbody>${report.gpu_models.map((one) => html`<tr key=${one.model}><th scope="row">${model(one.model)}</th><td class="num">${one.gpus}</td><td class="num">${number(one.gpu_hours, one.gpu_hours < 100 ? 2 : 0)}</td>
          <td class="num">${one.gpu_faults}</td><td class="num">${between(one.mtbf_h)}</td></tr>`)}</tbody>
      </table></div>
    <//>`;
}

/** GPUs of these hosts that had faults, those with most first. */
function useGpus(hosts) {
  const [gpus, setGpus] = useState(/** @type {any[]} */ ([]));
  const key = hosts.join("\n");
  useEffect(() => {
    let current = true;
    Promise.all(hosts.map((host) => get("/v1/gpus", { host, limit: 1000 }).catch(() => ({ items: [] })))).then((pages) => {
      const found = pages.flatMap((page) => page.items).filter((gpu) => gpu.fault_count > 0);
      if (current) setGpus(found.sort((a, b) => b.fault_count - a.fault_count));
    });
    return () => {
      current = false;
    };
  }, [key]);
  return gpus;
}
