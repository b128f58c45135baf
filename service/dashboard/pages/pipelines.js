/** The list of pipelines, newest first. */
import { html } from "htm/preact";
import { ago, duration } from "../parts/format.js";
import { Listing } from "../parts/listing.js";
import { Page } from "../parts/page.js";
import { Link } from "../parts/router.js";
import { State } from "../parts/states.js";
import { WorkTabs } from "../parts/work_tabs.js";

/** The page `/pipelines`. */
export function Pipelines() {
  return html`<${Page} title="Pipelines" wide><${WorkTabs} />
    <${Listing} path="/v1/pipelines" what="pipelines" fields=${["namespace"]} concerns=${(event) => event.kind.startsWith("pipeline.")}
      empty="No pipeline fits. gpu-platform pipelines submit FILE makes one.">
      ${(items) => html`<table class="jobs stack">
        <thead><tr><th scope="col">Pipeline</th><th scope="col">State</th><th scope="col">User</th><th scope="col" class="num">Submitted</th><th scope="col" class="num">Took</th></tr></thead>
        <tbody>${items.map((one) => html`<tr key=${one.id}>
          <th scope="row"><${Link} to=${`/pipelines/${one.id}`}>${one.name}<//><small class="mono muted">${one.id}</small></th>
          <td><${State} of=${one.state} /></td><td data-name="User">${one.user}<small class="muted">${one.namespace}</small></td>
          <td class="num" data-name="Submitted">${ago(one.created_at)}</td>
          <td class="num" data-name="Took">${one.finished_at ? duration((Date.parse(one.finished_at) - Date.parse(one.created_at)) / 1000) : "–"}</td></tr>`)}</tbody>
      </table>`}
    <//>
  <//>`;
}
