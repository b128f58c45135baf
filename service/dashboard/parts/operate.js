/** What operators do to hosts and GPUs: drain, take offline, put back, each with a reason. */
import { html } from "htm/preact";
import { post } from "../api/http.js";
import { operatesCluster } from "../api/session.js";
import { AskFirst } from "./dialog.js";

const DRAIN = ["drain", "Drain", "No new work comes here. What runs goes on to its end.", "Preempt what runs there now", false];
const OFFLINE = ["offline", "Offline", "It is taken out of service at once. That is refused while jobs run there.", "Kill what runs there", true];
const ONLINE = ["online", "Online", "It gets work again.", null, false];
const IN_SERVICE = new Set(["READY", "AVAILABLE", "ALLOCATED", "IN_USE"]);
const OUT = new Set(["OFFLINE", "LOST"]);

/** The buttons for a host (`/v1/hosts/NAME`) or a GPU (`/v1/gpus/UUID`) in `state`. `after`: called when one was done. */
export function Operate({ what, state, path, after }) {
  const may = operatesCluster.value;
  const verbs = IN_SERVICE.has(state) ? [DRAIN, OFFLINE] : OUT.has(state) ? [ONLINE] : [ONLINE, OFFLINE];
  return verbs.map(
    ([verb, label, explain, force, danger]) => html`<${AskFirst} key=${verb} label=${label} title="${label}: ${what}" explain=${explain}
      force=${force} danger=${danger} disabled=${!may} why=${may ? undefined : "Needs the role operator in the cluster"}
      action=${async (reason, forced) => {
        await post(`${path}/${verb}${forced ? "?force=true" : ""}`, { reason });
        await after();
      }} />`,
  );
}
