// SPDX-License-Identifier: Apache-2.0
//
// Draws one dashboard with Grafana's own components: time series, stats, bar gauges and tables by
// @grafana/ui, with Grafana's field overrides and transformations. Its heat map (status history) is
// not among them: a plain one of coloured cells stands in, and says so.
//   board.json: {board (variables filled in), prometheus, from, to, step}. When all is drawn,
//   window.drawn is a list of {title, type, series, error}.
import React from "react";
import { createRoot } from "react-dom/client";
import { lastValueFrom } from "rxjs";
import {
  applyFieldOverrides, createTheme, dateTime, FieldType, getDisplayProcessor, getFieldColorModeForField, getFieldDisplayName,
  standardFieldConfigEditorRegistry, standardTransformers, standardTransformersRegistry, toDataFrame, transformDataFrame,
} from "@grafana/data";
import { BarGauge, BigValue, PanelChrome, Table, ThemeContext, TimeSeries } from "@grafana/ui";

window.grafanaBootData = window.grafanaBootData || { settings: {}, user: {}, navTree: [] };
const theme = createTheme({ colors: { mode: "light" } });
const ROW = 38, WIDTH = 1400;

// Without these entries units, thresholds and so on would be dropped.
const STANDARD = ["unit", "min", "max", "decimals", "displayName", "color", "noValue", "thresholds", "mappings", "links"];
const CUSTOM = ["lineStyle", "fillOpacity", "cellOptions", "width", "align", "lineWidth", "showPoints", "pointSize", "stacking"];
const entry = (id, custom) => ({ id: custom ? `custom.${id}` : id, path: id, name: id, isCustom: custom, process: (value) => value,
  shouldApply: () => true, override: () => null, editor: () => null, settings: {} });
standardFieldConfigEditorRegistry.setInit(() => STANDARD.map((id) => entry(id, false)));
const registry = {
  getIfExists: (id) => standardFieldConfigEditorRegistry.getIfExists(id) || CUSTOM.map((c) => entry(c, true)).find((c) => c.id === id),
  list: () => [...standardFieldConfigEditorRegistry.list(), ...CUSTOM.map((c) => entry(c, true))],
};
standardTransformersRegistry.setInit(() => ["mergeTransformer", "filterFieldsByNameTransformer", "organizeFieldsTransformer"].map(
  (name) => ({ id: standardTransformers[name].id, name, transformation: async () => standardTransformers[name] })));

const legend = (format, labels) => (format ? format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, l) => labels[l] ?? "").trim()
  : Object.entries(labels).filter(([k]) => k !== "__name__").map(([k, v]) => `${k}=${v}`).join(" "));

async function ask(base, path, parameters) {
  const response = await fetch(`${base}/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const answer = await response.json();
  if (answer.status !== "success") throw new Error(answer.error);
  return answer.data.result;
}

/** Data frames of one target, as Grafana's Prometheus data source makes them. */
async function framesOf(target, order, job) {
  if (target.instant) {
    const rows = await ask(job.prometheus, "query", { query: target.expr, time: job.to });
    const labels = [...new Set(rows.flatMap((r) => Object.keys(r.metric)))].sort();
    const name = order.length > 1 ? `Value #${target.refId}` : "Value";
    return [toDataFrame({ refId: target.refId, fields: [
      { name: "Time", type: FieldType.time, values: rows.map((r) => r.value[0] * 1000) },
      ...labels.map((l) => ({ name: l, type: FieldType.string, values: rows.map((r) => r.metric[l] ?? "") })),
      { name, type: FieldType.number, values: rows.map((r) => Number(r.value[1])) }] })];
  }
  const series = await ask(job.prometheus, "query_range", { query: target.expr, start: job.from, end: job.to, step: job.step });
  const times = [];
  for (let t = job.from; t <= job.to + 1e-6; t += job.step) times.push(Math.round(t * 1000));
  return series.map((s) => {
    const values = new Map(s.values.map(([t, v]) => [Math.round(t * 1000), Number(v)]));
    return toDataFrame({ refId: target.refId, fields: [
      { name: "Time", type: FieldType.time, values: times },
      { name: "Value", type: FieldType.number, labels: s.metric, values: times.map((t) => (values.has(t) ? values.get(t) : null)),
        config: { displayNameFromDS: legend(target.legendFormat, s.metric) } }] });
  });
}

async function dataOf(panel, job) {
  let frames = (await Promise.all(panel.targets.map((t) => framesOf(t, panel.targets, job)))).flat();
  if (panel.transformations?.length) frames = await lastValueFrom(transformDataFrame(panel.transformations, frames));
  const custom = panel.fieldConfig.defaults.custom || {};
  for (const frame of frames)
    for (const field of frame.fields) field.config = { ...field.config, custom: { ...custom, ...field.config?.custom } };
  frames = applyFieldOverrides({ data: frames, fieldConfig: panel.fieldConfig, theme, replaceVariables: (text) => text,
    fieldConfigRegistry: registry, timeZone: "utc" });
  const by = panel.options?.sortBy?.[0]?.displayName;
  for (const frame of by ? frames : []) {
    const key = frame.fields.find((f) => getFieldDisplayName(f, frame, frames) === by);
    if (!key) continue;
    const order = key.values.map((_, i) => i).sort((a, b) => (key.values[b] ?? -1) - (key.values[a] ?? -1));
    for (const field of frame.fields) field.values = order.map((i) => field.values[i]);
  }
  return frames;
}

const numbers = (frames) => frames.flatMap((frame) => frame.fields.filter((f) => f.type === FieldType.number).map((field) => {
  const last = [...field.values].reverse().find((v) => v !== null && !Number.isNaN(v));
  const display = field.display || getDisplayProcessor({ field, theme });
  const value = display(last ?? null);
  const shown = last === undefined ? { ...value, text: field.config.noValue || "No data" } : value;
  return { field, last, value: { ...shown, title: getFieldDisplayName(field, frame, frames) } };
}));

function Stat({ frames, panel, width, height }) {
  const one = numbers(frames)[0];
  if (!one) return <div style={{ fontSize: 24, padding: 8 }}>{panel.fieldConfig.defaults.noValue || "No data"}</div>;
  const curve = { y: { ...one.field, type: FieldType.number } };
  return <BigValue theme={theme} width={width} height={height} value={one.value} sparkline={panel.options.graphMode === "area" ? curve : undefined}
    colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} justifyMode="auto" textMode="value" />;
}

function Bars({ frames, panel, width, height }) {
  const all = numbers(frames).filter((n) => n.last !== undefined).sort((a, b) => b.last - a.last).slice(0, 10);
  const top = Math.max(...all.map((n) => n.last), 1e-12);
  const each = Math.min(38, height / Math.max(all.length, 1));
  return all.map((n, i) => <BarGauge key={i} theme={theme} width={width} height={each - 4} orientation="horizontal" itemSpacing={4}
    displayMode={panel.options.displayMode} showUnfilled field={{ ...n.field.config, min: 0, max: n.field.config.max ?? top }}
    display={n.field.display} value={n.value} />);
}

function HeatMap({ frames, panel, width, height }) {
  const rows = frames.map((frame) => ({ name: getFieldDisplayName(frame.fields[1], frame, frames), field: frame.fields[1] }));
  rows.sort((a, b) => (a.name < b.name ? -1 : 1));
  const all = rows.flatMap((r) => r.field.values.filter((v) => v !== null && !Number.isNaN(v)));
  const top = panel.fieldConfig.defaults.max ?? Math.max(...all, 1e-12);
  const left = 150, each = Math.min(30, (height - 18) / Math.max(rows.length, 1));
  const mode = getFieldColorModeForField({ config: panel.fieldConfig.defaults });
  const color = mode.getCalculator({ config: panel.fieldConfig.defaults }, theme);
  return <svg width={width} height={height} fontSize="11" fill={theme.colors.text.primary}>
    {rows.map((row, r) => <g key={r}>
      <text x="0" y={r * each + each / 2 + 4}>{row.name}</text>
      {row.field.values.map((v, i) => (v === null || Number.isNaN(v) ? null
        : <rect key={i} x={left + (i * (width - left)) / row.field.values.length} y={r * each + 1}
            width={(width - left) / row.field.values.length + 0.5} height={each - 2} fill={color(v, Math.min(1, v / top))} />))}
    </g>)}
    <text x="0" y={height - 3} fill={theme.colors.text.secondary}>stand-in for Grafana’s status history, from 0 to {
      (rows[0]?.field.display || ((v) => ({ text: String(v) })))(top).text}{(rows[0]?.field.display?.(top).suffix) || ""}</text>
  </svg>;
}

const DRAW = { stat: Stat, bargauge: Bars, statushistory: HeatMap, "status-history": HeatMap };

function Body({ frames, panel, width, height, job }) {
  if (panel.type === "timeseries") {
    if (!frames.length) return <div style={{ padding: 8 }}>{panel.fieldConfig.defaults.noValue || "No data"}</div>;
    return <TimeSeries frames={frames} width={width} height={height} timeZone="utc" legend={panel.options.legend} options={panel.options}
      timeRange={{ from: dateTime(job.from * 1000), to: dateTime(job.to * 1000), raw: { from: "now-1h", to: "now" } }} />;
  }
  if (panel.type === "table") {
    if (!frames[0]?.length) return <div style={{ padding: 8 }}>{panel.fieldConfig.defaults.noValue || "No data"}</div>;
    return <Table data={frames[0]} width={width} height={height} showHeader cellHeight="sm" />;
  }
  const Draw = DRAW[panel.type];
  if (!Draw) throw new Error(`no drawing for panels of type ${panel.type}`);
  return <Draw frames={frames} panel={panel} width={width} height={height} />;
}

class Guard extends React.Component {
  state = { error: null };
  static getDerivedStateFromError(error) { return { error }; }
  componentDidCatch(error) { this.props.result.error = String(error.stack || error).slice(0, 600); }
  render() { return this.state.error ? <pre style={{ color: "red" }}>{String(this.state.error)}</pre> : this.props.children; }
}

const job = await (await fetch("board.json")).json();
const results = [], drawn = [];
for (const panel of job.board.panels) {
  const result = { title: panel.title, type: panel.type, series: 0, error: null };
  let frames = [];
  if (panel.type !== "row") {
    results.push(result);
    try {
      frames = await dataOf(panel, job);
      result.series = panel.type === "table" ? frames[0]?.length ?? 0 : frames.length;
    } catch (error) { result.error = String(error.stack || error).slice(0, 600); }
  }
  const { x, y, w, h } = panel.gridPos;
  const place = { position: "absolute", left: (x * WIDTH) / 24 + 4, top: 48 + y * ROW + 4 };
  const width = (w * WIDTH) / 24 - 8, height = h * ROW - 8;
  drawn.push(panel.type === "row"
    ? <div key={panel.id} style={{ ...place, fontWeight: 600, fontSize: 15, paddingTop: 6 }}>{panel.title}</div>
    : <div key={panel.id} style={place}>
        <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
          {(innerWidth, innerHeight) => <Guard result={result}>
            <Body frames={frames} panel={panel} width={innerWidth} height={innerHeight} job={job} /></Guard>}
        </PanelChrome>
      </div>);
}
const bottom = Math.max(...job.board.panels.map((p) => p.gridPos.y + p.gridPos.h));
document.getElementById("board").style.height = `${48 + bottom * ROW + 8}px`;
createRoot(document.getElementById("board")).render(
  <ThemeContext.Provider value={theme}>
    <div style={{ position: "absolute", left: 8, top: 10, fontSize: 20, fontWeight: 600 }}>{job.board.title}
      <span style={{ fontSize: 13, fontWeight: 400, marginLeft: 16 }}>{job.chosen}</span></div>
    {drawn}
  </ThemeContext.Provider>);
setTimeout(() => { window.drawn = results; }, 1500);
