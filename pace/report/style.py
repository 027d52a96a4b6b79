"""The page's look: dark text on white, system fonts, one column on narrow screens, no figure cut in print."""

STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --wash: #f6f8fa; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; color: var(--ink); background: #fff; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1124px; margin: 0 auto; padding: 34px 32px 70px; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 46px 0 4px; padding-top: 18px; border-top: 2px solid var(--ink); }
h3 { font-size: 16px; margin: 0 0 2px; }
p { margin: 6px 0; }
.lead, figcaption, .soft { color: var(--soft); }
nav { margin: 12px 0 22px; font-size: 14px; }
nav a { margin-right: 16px; white-space: nowrap; }
a { color: #0550ae; text-decoration: none; }
a:hover { text-decoration: underline; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); }
thead th { border-bottom: 1.5px solid var(--ink); }
tbody th { font-weight: 500; color: var(--soft); width: 290px; }
td { overflow-wrap: anywhere; }
td code { white-space: nowrap; display: inline-block; margin-right: 12px; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.chip { display: inline-block; width: 22px; height: 10px; border-radius: 2px; margin-right: 8px; }
.warnings { margin: 18px 0 0; padding: 10px 16px 10px 34px; background: #fff8e6; border-left: 4px solid #e69f00; }
.warnings li { margin: 3px 0; }
figure { margin: 30px 0 0; break-inside: avoid; }
figcaption { font-size: 14px; margin: 0 0 8px; max-width: 96ch; }
.panels { display: grid; gap: 14px 20px; align-items: start; }
.n2 { grid-template-columns: 1fr 1fr; } .n3 { grid-template-columns: 1fr 1fr 1fr; }
.panel { min-width: 0; overflow-x: auto; break-inside: avoid; }
.panel h4 { font-size: 13.5px; font-weight: 600; margin: 4px 0 0 4px; overflow-wrap: anywhere; }
.missing { border: 1px dashed #b6bec8; border-radius: 6px; padding: 10px 14px; }
.missing p { color: var(--soft); font-size: 14px; margin: 0; }
svg { display: block; width: 100%; height: auto; }
.defs { position: absolute; width: 0; height: 0; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans",
  Arial, sans-serif; fill: var(--ink); }
.tick { font-size: 11.5px; fill: #424a53 !important; font-variant-numeric: tabular-nums; }
.name { font-size: 12.5px; } .legend { font-size: 12.5px; } .strong { font-weight: 600; }
.grid { stroke: #e6e9ed; stroke-width: 1; } .axis { stroke: #6e7781; stroke-width: 1; }
.mark { stroke: #fff; stroke-width: .6; }
.band { fill: #1b1f24; fill-opacity: 0; } .band:hover { fill-opacity: .07; }
footer { margin-top: 50px; color: var(--soft); font-size: 13px; border-top: 1px solid var(--line); padding-top: 10px; }
@media screen and (max-width: 820px) {
  main { padding: 20px 16px 50px; }
  .n2, .n3 { grid-template-columns: 1fr; }
  .n1 svg { min-width: 640px; }
  tbody th { width: 40%; }
}
@media print {
  @page { margin: 14mm 12mm; }
  body { font-size: 10.5pt; } main { max-width: none; padding: 0; } nav { display: none; }
  h2 { margin-top: 26px; } figure { margin-top: 18px; } h2, h3, h4 { break-after: avoid; }
  .wide, .panel { overflow: visible; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
