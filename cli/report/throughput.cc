// SPDX-License-Identifier: Apache-2.0
#include "cli/report/throughput.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "cli/diagnose/nodes.h"
#include "cli/json_file.h"
#include "cli/report/page.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uintmax_t kMostCsvBytes = std::uintmax_t{256} << 20;
constexpr std::size_t kMostSamples = 100;
constexpr int kPrometheusSamples = 500;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
/// A coefficient worth a sentence, if its interval does not hold 0.
constexpr double kWorthTelling = 0.5;

/// The fields of a line; "a ""quoted"" one, with commas".
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"')
        out.back() += line[++i];
      else
        quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.emplace_back();
    } else if (c != '\r') {
      out.back() += c;
    }
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool is_one_of(std::string_view name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* n) { return name == n; });
}

/// Loggers write nothing or NaN where nothing was measured.
bool is_no_value(std::string_view text) {
  const std::string word = lower(trimmed(text));
  return word.empty() || word == "nan" || word == "null";
}

std::optional<double> number_of(std::string_view text) {
  text = trimmed(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::optional<double> time_of(const std::string& text) {
  if (const std::optional<double> seconds = number_of(text)) return *seconds * 1e9;
  std::tm parts{};
  double seconds = 0;
  char separator = 0;
  int used = 0;
  // NOLINTNEXTLINE(cert-err34-c): what is out of range is a time that nothing happened at
  if (std::sscanf(text.c_str(), "%d-%d-%d%c%d:%d:%lf%n", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &separator, &parts.tm_hour, &parts.tm_min, &seconds,
                  &used) != 7 ||
      (separator != 'T' && separator != ' '))
    return {};
  const std::string_view rest = std::string_view(text).substr(static_cast<std::size_t>(used));
  if (!rest.empty() && rest != "Z" && rest != "+00:00") return {};
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return (static_cast<double>(::timegm(&parts)) + seconds) * 1e9;
}

[[noreturn]] void refuse(const std::string& file, std::size_t line, const std::string& what) {
  throw std::runtime_error(printable(file) + ":" + std::to_string(line) + ": " + what);
}

/// Where the columns are.
struct Columns {
  std::size_t key = 0, value = 0;
  bool by_step = false;
  std::string name;
};

Columns columns_of(const std::string& file, const std::vector<std::string>& names,
                   const std::string& wanted) {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t time = kNone;
  std::size_t step = kNone;
  std::size_t value = kNone;
  for (std::size_t i = 0; i < names.size(); ++i) {
    // As TensorBoard and Weights & Biases export them, too.
    const std::string name = lower(trimmed(names[i]));
    if (is_one_of(name, {"time", "timestamp", "_timestamp", "wall time", "wall_time"}))
      time = i;
    else if (is_one_of(name, {"step", "_step", "global_step"}))
      step = i;
    else if (value == kNone && (wanted.empty() || trimmed(names[i]) == trimmed(wanted)))
      value = i;
  }
  if (time == kNone && step == kNone)
    refuse(file, 1, "the header names neither time nor step; one of them says when");
  if (value == kNone)
    refuse(file, 1,
           wanted.empty() ? "the header names no column beside time and step"
                          : "the header names no column '" + printable(wanted) + "'");
  return {time == kNone ? step : time, value, time == kNone, std::string(trimmed(names[value]))};
}

std::string two_digits(double value) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

bool is_worth_telling(const Correlation& c) {
  return c.pairs >= 10 && std::fabs(c.pearson) >= kWorthTelling && (c.low > 0 || c.high < 0);
}

Json correlation_json(const Correlation& c) {
  if (std::isnan(c.pearson)) return nullptr;
  return {{"pairs", c.pairs},
          {"pearson", c.pearson},
          {"low_95", c.low},
          {"high_95", c.high},
          {"spearman", c.spearman}};
}

Correlation correlate(const std::vector<StepSample>& samples, double StepSample::*x,
                      double StepSample::*y) {
  std::vector<double> xs;
  std::vector<double> ys;
  for (const StepSample& sample : samples) {
    if (std::isnan(sample.*x) || std::isnan(sample.*y)) continue;
    xs.push_back(sample.*x);
    ys.push_back(sample.*y);
  }
  return correlation_of(xs, ys);
}

Json or_null(double value) {
  return std::isnan(value) ? Json() : Json(value);
}

Json base_option() {
  Json option;
  option["animation"] = false;
  option["useUTC"] = true;
  option["legend"] = {{"type", "scroll"}, {"top", 0}};
  option["grid"] = {{"left", 95}, {"right", 95}, {"top", 45}, {"bottom", 55}};
  return option;
}

Json axis(const char* name, const char* format, int gap) {
  return {{"type", "value"},
          {"name", name},
          {"nameLocation", "middle"},
          {"nameGap", gap},
          {"scale", true},
          {"axisLabel", {{"formatter", std::string("@") + format}, {"hideOverlap", true}}}};
}

/// Why no part of the run has throughput though there are samples; empty if one has.
std::string why_no_sample(const Explanation& e) {
  if (e.throughput.samples.empty() || e.samples.empty() ||
      std::any_of(e.samples.begin(), e.samples.end(),
                  [](const StepSample& s) { return !std::isnan(s.throughput); }))
    return {};
  const double first = e.throughput.samples.front().first;
  const double last = e.throughput.samples.back().first;
  const std::string where =
      e.throughput.by_step
          ? "they are of steps " + std::to_string(static_cast<std::int64_t>(first)) + " to " +
                std::to_string(static_cast<std::int64_t>(last)) + ", " + "the steps from " +
                std::to_string(e.steps.steps.front().number) + " to " +
                std::to_string(e.steps.steps.back().number)
          : "they are from " + utc_text(static_cast<std::int64_t>(first)) + " to " +
                utc_text(static_cast<std::int64_t>(last)) + ", the steps from " +
                utc_text(e.steps.steps.front().start_ns) + " to " +
                utc_text(e.steps.steps.back().stop_ns) + " UTC";
  return "No value of " + e.throughput.name + " lies within the steps that were found: " + where +
         ".";
}

PictureTable samples_table(const Explanation& e) {
  PictureTable table{"Steps in each part of the run",
                     {{"Time", Unit::kTime},
                      {"Steps", Unit::kCount},
                      {"Step time", Unit::kSeconds},
                      {"Communication", Unit::kShare}},
                     {}};
  const bool throughput = !e.throughput.samples.empty();
  if (throughput) table.columns.push_back({e.throughput.name, Unit::kNumber});
  for (const StepSample& s : e.samples) {
    table.rows.push_back({s.time_ns, s.steps, s.step_seconds, nlohmann::json(or_null(s.share))});
    if (throughput) table.rows.back().push_back(nlohmann::json(or_null(s.throughput)));
  }
  return table;
}

}  // namespace

Throughput parse_throughput_csv(const std::string& file, const std::string& text,
                                const std::string& column) {
  Throughput out;
  out.source = printable(file);
  Columns columns;
  std::size_t line_number = 0;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  for (std::size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
       begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.empty() || line == "\r") continue;
    const std::vector<std::string> fields = fields_of(line);
    if (out.name.empty()) {
      columns = columns_of(file, fields, column);
      out.name = printable(columns.name);
      out.by_step = columns.by_step;
      continue;
    }
    if (fields.size() <= std::max(columns.key, columns.value))
      refuse(file, line_number, "fewer fields than the header has");
    if (is_no_value(fields[columns.value])) continue;
    const std::optional<double> key =
        columns.by_step ? number_of(fields[columns.key]) : time_of(fields[columns.key]);
    if (!key)
      refuse(file, line_number,
             "'" + printable(fields[columns.key]) +
                 (columns.by_step ? "' is no number of a step"
                                  : "' is no time: wanted seconds since 1970, or "
                                    "2026-06-19T06:56:24Z"));
    const std::optional<double> value = number_of(fields[columns.value]);
    if (!value)
      refuse(file, line_number,
             "'" + printable(fields[columns.value]) + "' in column " + out.name + " is no number");
    out.samples.emplace_back(*key, *value);
  }
  if (out.samples.empty())
    refuse(file, std::max<std::size_t>(line_number, 1),
           out.name.empty() ? "no header" : "no rows with a value in column " + out.name);
  std::stable_sort(out.samples.begin(), out.samples.end());
  return out;
}

void check_throughput(const ThroughputOptions& options) {
  if (!options.csv.empty()) (void)read_throughput(options, 0, 0);
  if (options.prometheus.empty()) return;
  const auto now = static_cast<double>(std::time(nullptr));
  (void)Prometheus(options.prometheus, options.ca, options.limit)
      .query_range(options.query, now - 1, now, 1);
}

Throughput read_throughput(const ThroughputOptions& options, std::int64_t first_ns,
                           std::int64_t last_ns) {
  if (!options.csv.empty())
    return parse_throughput_csv(options.csv, read_text_file(options.csv, kMostCsvBytes),
                                options.column);
  Throughput out;
  if (options.prometheus.empty()) return out;
  const Prometheus prometheus(options.prometheus, options.ca, options.limit);
  const double first = static_cast<double>(first_ns) * 1e-9;
  const double last = static_cast<double>(last_ns) * 1e-9;
  const double step = std::max(1.0, std::ceil((last - first) / kPrometheusSamples));
  const std::vector<Prometheus::Series> series =
      prometheus.query_range(options.query, first, last, step);
  if (series.size() != 1)
    throw std::runtime_error("--throughput-query gives " + std::to_string(series.size()) +
                             " series from " + utc_text(first_ns) + " to " + utc_text(last_ns) +
                             " UTC: wanted one, such as avg(...)");
  out.name = printable(options.query);
  out.source = "Prometheus at " + printable(options.prometheus);
  for (const auto& [time, value] : series[0].samples) {
    if (std::isfinite(value)) out.samples.emplace_back(time * 1e9, value);
  }
  return out;
}

Explanation explain(RunSteps steps, Throughput throughput) {
  Explanation out;
  out.steps = std::move(steps);
  out.throughput = std::move(throughput);
  const std::vector<RunStep>& all = out.steps.steps;
  // Parts of equally many steps, so that a pause is no part of its own.
  const std::size_t parts = std::min(kMostSamples, all.size());
  auto at = out.throughput.samples.begin();
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = part * all.size() / parts;
    const std::size_t end = (part + 1) * all.size() / parts;
    StepSample sample;
    sample.first_step = all[begin].number;
    sample.steps = end - begin;
    double seconds = 0;
    double communication = 0;
    bool known = true;
    for (std::size_t i = begin; i < end; ++i) {
      seconds += all[i].seconds();
      communication += all[i].communication_seconds;
      known = known && all[i].communication_known;
    }
    sample.time_ns = all[begin].start_ns + (all[end - 1].stop_ns - all[begin].start_ns) / 2;
    sample.step_seconds = seconds / static_cast<double>(sample.steps);
    sample.share = known ? communication / seconds : kNaN;
    const bool by_step = out.throughput.by_step;
    const auto from = static_cast<double>(by_step ? all[begin].number : all[begin].start_ns);
    const auto to = static_cast<double>(by_step ? all[end - 1].number + 1 : all[end - 1].stop_ns);
    double sum = 0;
    double count = 0;
    while (at != out.throughput.samples.end() && at->first < from) ++at;
    for (; at != out.throughput.samples.end() && at->first < to; ++at) {
      sum += at->second;
      ++count;
    }
    sample.throughput = count > 0 ? sum / count : kNaN;
    out.samples.push_back(sample);
  }
  out.share_throughput = correlate(out.samples, &StepSample::share, &StepSample::throughput);
  out.step_throughput = correlate(out.samples, &StepSample::step_seconds, &StepSample::throughput);
  out.share_step = correlate(out.samples, &StepSample::share, &StepSample::step_seconds);
  return out;
}

std::vector<Insight> insights_of(const Explanation& e) {
  std::vector<Insight> out;
  const auto add = [&](const char* kind, std::string text, const Correlation& c) {
    out.push_back({Insight::Weight::kInformation, kind, std::move(text),
                   "Pearson's r " + two_digits(c.pearson) + " (95 %: " + two_digits(c.low) +
                       " to " + two_digits(c.high) + "), Spearman's rho " + two_digits(c.spearman) +
                       ", over " + std::to_string(c.pairs) +
                       " parts of the run. Parts that follow each other are taken as independent.",
                   0, 0});
  };
  if (e.steps.left_out)
    out.push_back(
        {Insight::Weight::kInformation, "steps_in_part",
         "Of all steps the first " + std::to_string(e.steps.steps.size()) + " were looked at.", "",
         0, 0});
  if (!e.throughput.samples.empty() && e.steps.steps.empty()) {
    out.push_back({Insight::Weight::kNotice, "no_steps",
                   "Throughput could not be held against steps: " + e.steps.why_none + ".", "", 0,
                   0});
    return out;
  }
  if (const std::string missed = why_no_sample(e); !missed.empty()) {
    out.push_back({Insight::Weight::kNotice, "no_sample", missed, "", 0, 0});
    return out;
  }
  const Correlation& share = e.share_throughput;
  if (is_worth_telling(share))
    add("communication_throughput",
        share.pearson < 0
            ? e.throughput.name + " is low where the share of communication is high."
            : e.throughput.name + " is high where the share of communication is high.",
        share);
  else if (share.pairs >= 10 && !std::isnan(share.pearson))
    add("communication_throughput",
        "The share of communication does not explain " + e.throughput.name + ".", share);
  if (is_worth_telling(e.share_step) && e.share_step.pearson > 0)
    add("communication_step", "Steps are long where the share of communication is high.",
        e.share_step);
  return out;
}

std::vector<Picture> pictures_of(const Explanation& e) {
  std::vector<Picture> out;
  if (e.samples.size() < 2) return out;
  const bool throughput = !std::isnan(e.step_throughput.pearson) || e.step_throughput.pairs > 0;
  Picture& over_time = out.emplace_back();
  over_time.name = "steps-over-time";
  over_time.section = "Steps and throughput";
  over_time.title = "Step time and the share of communication in it";
  over_time.text =
      "Steps of " + e.steps.process +
      ", found in the period of its operations. Communication is the time in which at least "
      "one operation ran, whether computation hid it or not.";
  over_time.table = samples_table(e);
  over_time.option = base_option();
  over_time.option["tooltip"] = {{"trigger", "axis"}};
  over_time.option["xAxis"] = {{"type", "time"},
                               {"name", "time (UTC)"},
                               {"nameLocation", "middle"},
                               {"nameGap", 30},
                               {"axisLabel", {{"hideOverlap", true}}}};
  over_time.option["yAxis"] = {axis("step time", "seconds", 70),
                               axis("communication", "share", 60)};
  Json steps = Json::array();
  Json shares = Json::array();
  for (const StepSample& s : e.samples) {
    const double ms = static_cast<double>(s.time_ns) * 1e-6;
    steps.push_back({ms, s.step_seconds});
    shares.push_back({ms, or_null(s.share)});
  }
  const auto line = [](const char* name, const char* format, int y, Json data) {
    return Json{{"type", "line"},
                {"name", name},
                {"yAxisIndex", y},
                {"showSymbol", false},
                {"tooltip", {{"valueFormatter", std::string("@") + format}}},
                {"data", std::move(data)}};
  };
  over_time.option["series"] = {line("step time", "seconds", 0, std::move(steps)),
                                line("communication", "share", 1, std::move(shares))};
  if (!throughput) return out;
  Picture& scatter = out.emplace_back();
  scatter.name = "throughput";
  scatter.section = "Steps and throughput";
  scatter.title = "Communication and " + e.throughput.name;
  scatter.text =
      "Each point is a part of the run. Pearson's r " + two_digits(e.share_throughput.pearson) +
      " (95 %: " + two_digits(e.share_throughput.low) + " to " +
      two_digits(e.share_throughput.high) + "), Spearman's rho " +
      two_digits(e.share_throughput.spearman) + "; of step time and throughput " +
      two_digits(e.step_throughput.pearson) + ". Throughput is from " + e.throughput.source + ".";
  scatter.table = samples_table(e);
  scatter.option = base_option();
  scatter.option["tooltip"] = {{"trigger", "item"}, {"formatter", "@point"}};
  scatter.option["xAxis"] = axis("communication", "share", 30);
  scatter.option["yAxis"] = axis(e.throughput.name.c_str(), "number", 70);
  Json points = Json::array();
  for (const StepSample& s : e.samples) {
    if (!std::isnan(s.share) && !std::isnan(s.throughput))
      points.push_back({s.share, s.throughput, s.step_seconds});
  }
  scatter.option["series"] = {{{"type", "scatter"},
                               {"name", e.throughput.name},
                               {"dimensions", {"communication", "throughput", "step time"}},
                               {"symbolSize", 9},
                               {"data", std::move(points)}}};
  return out;
}

Json explanation_json(const Explanation& e) {
  Json out;
  out["process"] = e.steps.process;
  out["steps"] = e.steps.steps.size();
  if (!e.steps.why_none.empty()) out["why_none"] = e.steps.why_none;
  out["throughput"] = {{"name", e.throughput.name},
                       {"source", e.throughput.source},
                       {"samples", e.throughput.samples.size()}};
  out["communication_and_throughput"] = correlation_json(e.share_throughput);
  out["step_time_and_throughput"] = correlation_json(e.step_throughput);
  out["communication_and_step_time"] = correlation_json(e.share_step);
  out["parts"] = Json::array();
  for (const StepSample& s : e.samples)
    out["parts"].push_back({{"time_ns", s.time_ns},
                            {"first_step", s.first_step},
                            {"steps", s.steps},
                            {"step_seconds", s.step_seconds},
                            {"communication_share", or_null(s.share)},
                            {"throughput", or_null(s.throughput)}});
  return out;
}

}  // namespace ncclscope::cli::report
