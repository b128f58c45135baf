/** A host on the page of the cluster. It is drawn again only when it changed. */
import { Component } from "preact";
import { html } from "htm/preact";
import { holders } from "../api/fleet.js";
import { GpuCells } from "./gpu_cells.js";
import { Link } from "./router.js";
import { State } from "./states.js";

/** `entry`: {host, gpus}. `metric`: what the cells show. */
export class HostCard extends Component {
  /** Entries are replaced when something in them changed, and never changed in place. */
  shouldComponentUpdate(next) {
    return next.entry !== this.props.entry || next.metric !== this.props.metric;
  }

  render({ entry: { host, gpus }, metric }) {
    return html`<article class="host">
      <div class="host-head">
        <h4><${Link} to=${`/hosts/${encodeURIComponent(host.name)}`}>${host.name}<//></h4>
        ${host.state === "READY"
          ? html`<span class="muted">${host.gpus_free} of ${host.gpus_total} free</span>`
          : html`<${State} of=${host.state} />`}
      </div>
      <${GpuCells} gpus=${gpus} metric=${metric} />
      ${host.reason ? html`<p class="why" title=${host.reason}>${host.reason}</p>` : html`<${Holders} gpus=${gpus} />`}
    </article>`;
  }
}

/** The jobs that hold GPUs here, those with most GPUs first. */
function Holders({ gpus }) {
  const held = new Map();
  for (const gpu of gpus) for (const { job_id: id } of gpu.holders) held.set(id, (held.get(id) ?? 0) + 1);
  const shown = [...held].sort((a, b) => b[1] - a[1]);
  if (!shown.length) return html`<p class="who muted">nobody</p>`;
  return html`<p class="who">
    ${shown.slice(0, 2).map(([id, many]) => html`<${Holder} key=${id} id=${id} many=${many} />`)}
    ${shown.length > 2 && html`<span class="muted">and ${shown.length - 2} more</span>`}
  </p>`;
}

function Holder({ id, many }) {
  const name = holders.value.get(id) ?? id;
  const text = html`${name}<span class="muted"> ×${many}</span>`;
  return id === "hidden"
    ? html`<span title="a job of a namespace that you may not see">${text}</span>`
    : html`<${Link} to=${`/jobs/${id}`} title=${id}>${text}<//>`;
}
