/** Who one is and what one may do here, and the way out. */
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "htm/preact";
import { end } from "../api/provider.js";
import { endAtProvider, me, signOut } from "../api/session.js";

/** What each role lets one do, besides what the roles before it do. */
const ROLES = {
  viewer: "see jobs, hosts, GPUs, the queue and usage",
  user: "submit jobs, stop one's own and read their output",
  operator: "stop and hold the jobs of others; in the cluster: drain hosts and GPUs, ask what if",
  admin: "read the output of others' jobs, and make tokens",
};

/** The name of the person, which opens the list of their roles. */
export function Person() {
  const [open, setOpen] = useState(false);
  const who = me.value;
  if (!who) return null;
  return html`<button type="button" class="quiet person" title="Who am I, and what may I do?" onClick=${() => setOpen(true)}>${who.name}</button>
    <button type="button" class="quiet leave" onClick=${leave}>Sign out</button>
    ${open && html`<${WhoAmI} who=${who} close=${() => setOpen(false)} />`}`;
}

/** Over every page of somebody without any role. */
export function NoRole() {
  if (!me.value || Object.keys(me.value.roles).length) return null;
  return html`<p class="stale" role="status">${me.value.name} has no role here, and so sees nothing. An administrator gives one${me.value.signed_in_by ? ", by the groups of the identity provider" : ""}.</p>`;
}

function WhoAmI({ who, close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const roles = Object.entries(who.roles);
  return html`<dialog ref=${dialog} aria-labelledby="who" onClose=${close}>
    <h2 id="who">${who.name}</h2>
    <p class="muted">${who.signed_in_by ? html`Signed in at <code>${who.signed_in_by}</code>` : "Signed in with an API token"}${who.acting_as ? `, acting as ${who.acting_as}` : ""}.</p>
    ${!roles.length && html`<p>No role: ask an administrator for one.</p>`}
    <ul class="roles">${roles.map(([where, role]) => html`<li key=${where}><strong>${role}</strong> in ${where === "*" ? "the whole cluster" : html`the namespace <code>${where}</code>`}: may ${mayDo(role)}.
      ${where in who.max_priority && html` <span class="muted">Highest priority: ${who.max_priority[where]}.</span>`}</li>`)}</ul>
    ${who.scopes && html`<p class="muted">The token is limited to ${who.scopes.join(", ")}.</p>`}
    <div class="actions end"><button type="button" onClick=${leave}>Sign out</button><button type="button" class="primary" onClick=${() => dialog.current.close()}>Close</button></div>
  </dialog>`;
}

function mayDo(role) {
  const names = Object.keys(ROLES);
  return names.slice(0, names.indexOf(role) + 1).map((name) => ROLES[name]).join("; ");
}

/** Sign out here, and end at the provider what renews the token. */
async function leave() {
  const held = signOut();
  if (held) endAtProvider.value = await end(held);
}
