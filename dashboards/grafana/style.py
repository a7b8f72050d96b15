# SPDX-License-Identifier: Apache-2.0
"""How panels, variables and links of all dashboards look: thin layers over the Grafana Foundation SDK.

Every panel has a title, a description, a unit and expressions; legends name what differs and nothing else.
"""
from grafana_foundation_sdk.builders import bargauge, common as common_builders, dashboard as boards
from grafana_foundation_sdk.builders import prometheus, stat, statushistory, table, timeseries
from grafana_foundation_sdk.models import common, dashboard, prometheus as prometheus_models

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
RUNBOOKS = "https://example.org/ncclscope/docs/runbooks"  # a constant of the dashboards: the place of docs/runbooks

GOOD, NOTICE, WARNING, CRITICAL, NEUTRAL = "green", "blue", "orange", "red", "text"
RANK_SECONDS = "suffix: s/s"  # sums over ranks: as seconds they would be shown as minutes
NO_DCGM = "no metrics of DCGM's exporter for these GPUs"
NOTHING = "–"
MOST_ROWS = 40  # of a heat map: more cannot be read
SEVERITIES = ((1, "information", NOTICE), (2, "warning", WARNING), (3, "critical", CRITICAL))
CLASSES = (("process_gone", "process gone", CRITICAL), ("argument_mismatch", "calls differ", CRITICAL),
           ("rank_never_called", "never called", CRITICAL), ("gpu_never_started", "GPU never started", CRITICAL),
           ("network_stuck", "network stuck", CRITICAL), ("unknown", "not known: GPU or network", CRITICAL),
           ("outside_nccl", "outside NCCL", WARNING))


# ---- queries
def query(expression, legend="", ref="A", instant=False):
    built = prometheus.Dataquery().expr(" ".join(expression.split())).legend_format(legend).ref_id(ref)
    built = built.editor_mode(prometheus_models.QueryEditorMode.CODE).datasource(SOURCE)
    if instant:
        return built.instant().format(prometheus_models.PromQueryFormat.TABLE)
    return built.range()


def queries(panel, expressions, instant=False):
    """expressions: one, or [(expression, legend), ...]."""
    if isinstance(expressions, str):
        expressions = [(expressions, "")]
    for i, (expression, legend) in enumerate(expressions):
        panel = panel.with_target(query(expression, legend, chr(ord("A") + i), instant))
    return panel


# ---- panels
def thresholds(*steps):
    """(None, colour) first, then (from, colour)."""
    made = [dashboard.Threshold(value=value, color=color) for value, color in steps]
    return boards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(made)


def color(mode):
    return boards.FieldColor().mode(mode)


def described(panel, title, description, unit, width, height):
    return (panel.title(title).description(" ".join(description.split())).unit(unit).span(width).height(height)
            .datasource(SOURCE))


def curves(title, description, unit, expressions, width=12, height=8, stacked=False, links=(), low=None, high=None, none=None):
    """none: what an empty panel says instead of "No data"."""
    panel = described(timeseries.Panel(), title, description, unit, width, height)
    if none:
        panel = panel.no_value(none)
    panel = (panel.line_width(1).fill_opacity(40 if stacked else 6).show_points(common.VisibilityMode.AUTO).point_size(4)
             .color_scheme(color(dashboard.FieldColorModeId.PALETTE_CLASSIC))
             .legend(common_builders.VizLegendOptions().show_legend(True).display_mode(common.LegendDisplayMode.LIST)
                     .placement(common.LegendPlacement.BOTTOM).calcs([]))
             .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)))
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if low is not None:
        panel = panel.min(low)
    if high is not None:
        panel = panel.max(high)
    # Baselines are dashed and grey.
    panel = panel.override_by_regexp("/before|baseline|budget|limit|threshold/", [
        dashboard.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 6]}),
        dashboard.DynamicConfigValue("custom.fillOpacity", 0)])
    if links:
        panel = panel.data_links(list(links))
    return queries(panel, expressions)


def number(title, description, unit, expression, width=4, height=4, steps=((None, NEUTRAL),), decimals=None, links=(),
           none="none", graph=True):
    panel = described(stat.Panel(), title, description, unit, width, height)
    panel = (panel.thresholds(thresholds(*steps)).color_scheme(color(dashboard.FieldColorModeId.THRESHOLDS)).no_value(none)
             .graph_mode(common.BigValueGraphMode.AREA if graph else common.BigValueGraphMode.NONE)
             .color_mode(common.BigValueColorMode.VALUE).text_mode(common.BigValueTextMode.VALUE)
             .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)))
    if decimals is not None:
        panel = panel.decimals(decimals)
    if links:
        panel = panel.data_links(list(links))
    return queries(panel, expression)


def bars(title, description, unit, expressions, width=12, height=8, links=(), steps=((None, NOTICE),), low=0, none=None):
    panel = described(bargauge.Panel(), title, description, unit, width, height)
    if none:
        panel = panel.no_value(none)
    panel = (panel.orientation(common.VizOrientation.HORIZONTAL).display_mode(common.BarGaugeDisplayMode.BASIC).min(low)
             .show_unfilled(True).thresholds(thresholds(*steps)).color_scheme(color(dashboard.FieldColorModeId.THRESHOLDS))
             .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False)))
    if links:
        panel = panel.data_links(list(links))
    return queries(panel, expressions)


def worst(series, by, of=None):
    """The series that were highest at any time in the range shown; `of`: those of the same labels as the highest of that."""
    return f"{series} and on ({by}) topk({MOST_ROWS}, max_over_time({of or series}[$__range] @ end()))"


def heat(title, description, unit, expressions, width=12, height=9, low=0, high=None, links=(), none=None):
    """A heat map: a row for each series, time from left to right, colour for the value."""
    panel = described(statushistory.Panel(), title, description, unit, width, height)
    if none:
        panel = panel.no_value(none)
    panel = (panel.show_value(common.VisibilityMode.NEVER).row_height(0.95).col_width(1.0).min(low).line_width(0)
             .fill_opacity(90).color_scheme(color(dashboard.FieldColorModeId.CONTINUOUS_GR_YL_RD))
             .legend(common_builders.VizLegendOptions().show_legend(True).display_mode(common.LegendDisplayMode.LIST)
                     .placement(common.LegendPlacement.BOTTOM).calcs([]))
             .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.SINGLE)))
    if high is not None:
        panel = panel.max(high)
    if links:
        panel = panel.data_links(list(links))
    return queries(panel, expressions)


class Column:
    """A column of a listing: `field` is a label or "Value #A"; a column that is not named is hidden."""

    def __init__(self, field, name, unit=None, steps=(), links=(), texts=None, width=None, decimals=None):
        self.field, self.name, self.unit, self.steps, self.links = field, name, unit, steps, links
        self.texts, self.width, self.decimals = texts, width, decimals

    def properties(self):
        out = []
        if self.unit:
            out.append(dashboard.DynamicConfigValue("unit", self.unit))
            if self.unit.startswith("dateTime"):
                out.append(dashboard.DynamicConfigValue("custom.align", "left"))
        if self.decimals is not None:
            out.append(dashboard.DynamicConfigValue("decimals", self.decimals))
        if self.width:
            out.append(dashboard.DynamicConfigValue("custom.width", self.width))
        if self.texts:
            options = {str(value): {"text": text, "color": hue, "index": i} for i, (value, text, hue) in enumerate(self.texts)}
            out.append(dashboard.DynamicConfigValue("mappings", [{"type": "value", "options": options}]))
            out.append(dashboard.DynamicConfigValue("custom.align", "left"))
        if self.steps:
            out.append(dashboard.DynamicConfigValue("thresholds", thresholds(*self.steps).build()))
            # What is not known is neither good nor bad; without this it would have the first colour.
            out.append(dashboard.DynamicConfigValue("mappings", [
                {"type": "special", "options": {"match": "null+nan", "result": {"text": "–", "color": NEUTRAL, "index": 0}}}]))
        if self.steps or self.texts:
            out.append(dashboard.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
            out.append(dashboard.DynamicConfigValue("color", {"mode": "thresholds"}))
        if self.links:
            out.append(dashboard.DynamicConfigValue("links", [link.build() for link in self.links]))
        return out


def listing(title, description, expressions, columns, width=24, height=8, sort=None, none=NOTHING):
    """A table of the newest values; `none` is what an empty one says. Rows of several expressions with equal labels become one; a bare metric has its name as a
    label too, so aggregate. Labels are text, also where they look like numbers; columns of values have units."""
    panel = described(table.Panel(), title, description, "string", width, height)
    panel = queries(panel.show_header(True).cell_height(common.TableCellHeight.SM).min_width(60).no_value(none),
                    [(e, "") for e in expressions], instant=True)
    if len(expressions) > 1:
        panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="filterFieldsByName", options={
        "include": {"names": [c.field for c in columns]}}))
    panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options={
        "indexByName": {c.field: i for i, c in enumerate(columns)}, "renameByName": {c.field: c.name for c in columns},
        "excludeByName": {}}))
    for column in columns:
        properties = column.properties()
        if none != NOTHING:
            properties.append(dashboard.DynamicConfigValue("noValue", NOTHING))
        if properties:
            panel = panel.override_by_name(column.name, properties)
    if sort:
        panel = panel.sort_by([common_builders.TableSortByFieldState().display_name(sort).desc(True)])
    return panel


def alerts(title, description, selectors, columns, width=24, height=8):
    """A table of the alerts that fire for any of the selectors, the gravest first, with the time of each."""
    named = 'alertname=~"Ncclscope.*"'

    def times(value, more=""):
        """`value` (a piece of an expression) before the start of each such alert, with the alert's labels."""
        started = " or ".join(f"{value}(ALERTS_FOR_STATE{{{named}, {selector}{more}}})" for selector in selectors)
        return f'(({started}) and ignoring (alertstate) ALERTS{{{named}, alertstate="firing"}})'
    gravity = " or ".join(times(f"{value} + 0 * ", f', severity="{severity}"')
                          for value, severity in ((3, "critical"), (2, "warning"), (1, "info")))
    return listing(
        title, description, [gravity, times("1000 * ")],
        [Column("alertname", "Alert", links=[to_runbook()], width=260), Column("Value #A", "Severity", texts=SEVERITIES, width=95),
         Column("Value #B", "Since", "dateTimeAsIsoNoDateIfToday", width=150), *columns], width=width, height=height, sort="Severity",
        none="no alert fires")


def row(title):
    return boards.Row(title)


# ---- links
def to_dashboard(title, uid, **variables):
    """Opens another dashboard with variables; the time range and the data source go with it."""
    parts = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return boards.DashboardLink(title).url(f"/d/{uid}?${{__url_time_range}}&var-datasource=${{datasource}}{parts}")


def to_runbook(title="Runbook", alert="${__data.fields.Alert}"):
    return boards.DashboardLink(title).url(f"${{runbooks}}/{alert}.md").target_blank(True)


# ---- variables
def source_variable():
    return boards.DatasourceVariable("datasource").label("Data source").type("prometheus").description(
        "The Prometheus that scrapes the agents and evaluates the recording rules")


class HiddenConstant(boards.ConstantVariable):
    """The builder of constants cannot hide them."""

    def build(self):
        variable = super().build()
        variable.hide = dashboard.VariableHide.HIDE_VARIABLE
        return variable


def runbooks_variable():
    return HiddenConstant("runbooks").label("Runbooks").description("Where docs/runbooks is served").value(RUNBOOKS)


def values(name, label, description, text, several=False, regex=None):
    variable = (boards.QueryVariable(name).label(label).description(description).query(text).datasource(SOURCE)
                .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(dashboard.VariableSort.NATURAL_ASC))
    if several:
        every = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
        variable = variable.multi(True).include_all(True).all_value(".*").current(every)
    if regex:
        variable = variable.regex(regex)
    return variable


def choice(name, label, description, options, current):
    made = [dashboard.VariableOption(selected=o == current, text=o, value=o) for o in options]
    return (boards.CustomVariable(name).label(label).description(description).values(",".join(options)).options(made)
            .current(dashboard.VariableOption(selected=True, text=current, value=current)))


# ---- dashboards
TITLES = {
    "ncclscope-cluster": "Cluster overview",
    "ncclscope-job": "Job",
    "ncclscope-communicator": "Communicator",
    "ncclscope-node": "Node / GPU",
    "ncclscope-compare": "Compare jobs",
    "ncclscope-telemetry": "Telemetry",
}


def board(uid, description, variables, refresh="30s", since="now-1h"):
    made = (boards.Dashboard(f"ncclscope / {TITLES[uid]}").uid(uid).description(" ".join(description.split()))
            .tags(["ncclscope"]).refresh(refresh).time(since, "now").timezone("browser").readonly()
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR))
    made = made.with_variable(source_variable()).with_variable(runbooks_variable())
    for variable in variables:
        made = made.with_variable(variable)
    others = boards.DashboardLink("ncclscope").type(dashboard.DashboardLinkType.DASHBOARDS).tags(["ncclscope"])
    made = made.link(others.as_dropdown(True).include_vars(True).keep_time(True))
    runbooks = boards.DashboardLink("Runbooks").type(dashboard.DashboardLinkType.LINK).url("${runbooks}/README.md")
    return made.link(runbooks.icon("doc").target_blank(True))
