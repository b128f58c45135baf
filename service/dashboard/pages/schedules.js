/** The list of schedules. */
import { html } from "htm/preact";
import { time } from "../parts/format.js";
import { Listing } from "../parts/listing.js";
import { Page } from "../parts/page.js";
import { Link } from "../parts/router.js";
import { when } from "./schedule.js";
import { WorkTabs } from "../parts/work_tabs.js";

/** The page `/schedules`. */
export function Schedules() {
  return html`<${Page} title="Schedules" wide><${WorkTabs} />
    <${Listing} path="/v1/schedules" what="schedules" fields=${["namespace"]} concerns=${(event) => event.kind.startsWith("schedule.")}
      empty="No schedule fits. gpu-platform schedules create makes one.">
      ${(items) => html`<table class="jobs stack">
        <thead><tr><th scope="col">Schedule</th><th scope="col">State</th><th scope="col">When</th><th scope="col">If the last one still runs</th><th scope="col">User</th><th scope="col">Made</th></tr></thead>
        <tbody>${items.map((one) => html`<tr key=${one.id}>
          <th scope="row"><${Link} to=${`/schedules/${one.id}`}>${one.request.job.name}<//><small class="mono muted">${one.id}</small></th>
          <td><span class="state ${one.paused ? "wait" : "good"}">${one.paused ? "paused" : "active"}</span>${one.note && html`<small class="muted">${one.note}</small>`}</td>
          <td data-name="When">${when(one.request)}</td><td data-name="Overlap">${one.request.overlap}</td>
          <td data-name="User">${one.user}<small class="muted">${one.namespace}</small></td><td data-name="Made">${time(one.created_at)}</td></tr>`)}</tbody>
      </table>`}
    <//>
  <//>`;
}
