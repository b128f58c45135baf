/** What every page has: a title, and how errors and empty lists look. */
import { useEffect } from "preact/hooks";
import { html } from "htm/preact";
import { refusal } from "../api/session.js";
import { arrived } from "./router.js";

/** A page. `actions` stand right of its title. */
export function Page({ title, actions, children, wide }) {
  useEffect(() => {
    document.title = `${title} · gpu-platform`;
    if (arrived()) document.getElementById("main")?.focus({ preventScroll: true });
  }, [title]);
  return html`<main id="main" tabindex="-1" class=${wide ? "wide" : ""}>
    <div class="page-head">
      <h1>${title}</h1>
      ${actions && html`<div class="actions">${actions}</div>`}
    </div>
    ${children}
  </main>`;
}

/** A part of a page, with a heading. */
export function Panel({ title, actions, children, className = "", id }) {
  const name = id ?? `panel-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return html`<section class="panel ${className}" aria-labelledby=${name}>
    <div class="panel-head">
      <h2 id=${name}>${title}</h2>
      ${actions && html`<div class="actions">${actions}</div>`}
    </div>
    ${children}
  </section>`;
}

/**
 * An error: what happened. The message of a refusal says what is missing, and who has it. `again`: what to do if
 * another try can help.
 *
 * @param {{problem: any, again?: string}} props
 */
export function Failed({ problem, again = "The page tries again by itself." }) {
  if (!problem) return null;
  return html`<div class="note bad" role="alert">
    <strong>${titleOf(problem)}</strong>
    <p>${sentence(problem.message)}</p>
    ${problem.retryable && html`<p>${again}</p>`}
  </div>`;
}

/** In place of a list without items. */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** In place of what is not there yet. */
export function Loading({ what = "Loading" }) {
  return html`<p class="empty" role="status">${what}…</p>`;
}

/** The name of an error. */
export function titleOf(problem) {
  return (
    {
      401: refusal.value ? "Sign in again" : "You are not signed in",
      403: "You may not see or do this",
      404: "It is not here",
      409: "Not possible now",
      429: "Too many requests",
    }[problem.status] ?? (problem.status === 0 ? "No connection" : "It did not work")
  );
}

/** A message of the API as a sentence. */
export function sentence(text) {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?…]$/.test(trimmed) ? "" : ".");
}
