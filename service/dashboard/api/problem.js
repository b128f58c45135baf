/** An answer of the service that is an error: RFC 9457, as every route sends it. */
export class Problem extends Error {
  /** @param {number} status  0: there was no answer. @param {any} body */
  constructor(status, body) {
    super(body?.detail ?? `the service answered ${status}`);
    this.status = status;
    this.code = body?.code ?? "unexpected_answer";
    this.retryable = body?.retryable ?? (status >= 500 || status === 429);
    this.details = body?.details ?? {};
    this.errors = body?.errors ?? [];
  }
}

/** The error that an answer is. @param {Response} answer */
export async function problemOf(answer) {
  return new Problem(answer.status, await answer.json().catch(() => null));
}
