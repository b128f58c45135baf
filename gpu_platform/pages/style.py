"""The style sheet of pages that stand alone: light and dark, no font from anywhere."""

from __future__ import annotations

_LIGHT = ("#2563eb", "#d9480f", "#0b8a5b", "#9333ea", "#b7860b", "#c2255c", "#0e7490", "#868e96")
_DARK = ("#74a7ff", "#ff9f6b", "#4fd1a1", "#c99bff", "#e6bd4f", "#ff85ae", "#5cc8dd", "#9aa3ad")


def _colors() -> str:
    light = "".join(f".c{i}{{color:{color}}}" for i, color in enumerate(_LIGHT))
    dark = "".join(f".c{i}{{color:{color}}}" for i, color in enumerate(_DARK))
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}"


_SHEET = """
:root{--ground:#fff;--ink:#1c2128;--faint:#5b6470;--rule:#e3e6ea;--good:#0b7a4b;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ground:#14171b;--ink:#e6e9ed;--faint:#9aa3ad;--rule:#2b3138;--good:#5fd6a0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:28px 24px 48px;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:36px 0 6px}p{margin:4px 0}.faint,ul{color:var(--faint)}
ul{margin:6px 0 0;padding-left:18px}
.legend{display:flex;flex-wrap:wrap;gap:6px 22px;margin:18px 0 4px}
.legend i{display:inline-block;width:18px;height:3px;border-radius:2px;background:currentColor;margin:0 8px 4px 0}
.legend b{color:var(--ink);font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:22px 28px;margin-top:14px}
figure{margin:0;min-width:0}figcaption{font-weight:600;margin-bottom:4px}svg{display:block;width:100%;height:auto}
svg text{font-size:11.5px;fill:var(--faint)}.grid{stroke:var(--rule)}.axis{stroke:var(--faint)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin-top:8px}
th,td{padding:5px 16px 5px 0;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
tbody th,thead th:first-child{text-align:left;font-weight:500}thead th{font-weight:600}
thead th[colspan]{text-align:center}@media(max-width:640px){th small{display:none}}
th small{color:var(--faint);margin-left:10px;font-weight:400}.best{color:var(--good);font-weight:600}
"""
STYLE = _SHEET + _colors()
"""Classes ``c0`` to ``c7`` are the colours of lines and bars."""
