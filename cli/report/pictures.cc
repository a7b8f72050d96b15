// SPDX-License-Identifier: Apache-2.0
#include "cli/report/pictures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "cli/report/matched.h"
#include "cli/report/quantiles.h"
#include "cli/report/schema.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<nlohmann::json>;

/// An operation that has a bandwidth.
const std::string kTimed = "busbw > 0 AND bytes > 0 AND seconds > 0";

constexpr double kBinsPerOctave = 16;  // of histograms: 4.4 % wide
constexpr std::size_t kMostBins = 400;
constexpr int kNamesWidth = 250;  // pixels

std::string text_at(const Rows& rows, std::size_t column, std::size_t row) {
  return printable(rows.text(column, row));
}

std::vector<std::string> texts(Connection& connection, const std::string& sql) {
  std::vector<std::string> out;
  for_each_row(connection, sql,
               [&](const Rows& rows, std::size_t r) { out.push_back(text_at(rows, 0, r)); });
  return out;
}

std::string number(std::size_t value) {
  return std::to_string(value);
}

/// ECharts takes times in milliseconds.
double milliseconds(double ns) {
  return ns * 1e-6;
}

// ---- options
// -------------------------------------------------------------------------------------

Json value_axis(const std::string& name, const std::string& format, const char* type) {
  Json axis = {{"type", type},
               {"name", name},
               {"nameLocation", "middle"},
               {"axisLabel", {{"formatter", "@" + format}, {"hideOverlap", true}}}};
  if (std::string(type) == "log") axis["logBase"] = 2;
  return axis;
}

Json x_axis(const std::string& name, const std::string& format, const char* type) {
  Json axis = value_axis(name, format, type);
  axis["nameGap"] = 30;
  return axis;
}

Json y_axis(const std::string& name, const std::string& format, const char* type) {
  Json axis = value_axis(name, format, type);
  axis["nameGap"] = 70;
  return axis;
}

/// Names may be long: what does not fit is cut, and stands in the table.
Json names_axis(Json names) {
  return {{"type", "category"},
          {"data", std::move(names)},
          {"axisLabel", {{"width", kNamesWidth}, {"overflow", "truncate"}}}};
}

Json time_axis() {
  return {{"type", "time"},
          {"name", "time (UTC)"},
          {"nameLocation", "middle"},
          {"nameGap", 30},
          {"axisLabel", {{"hideOverlap", true}}}};
}

Json base_option() {
  Json option;
  option["animation"] = false;
  option["useUTC"] = true;
  option["legend"] = {{"type", "scroll"}, {"top", 0}};
  option["grid"] = {{"left", 95}, {"right", 30}, {"top", 45}, {"bottom", 55}};
  option["tooltip"] = {{"trigger", "item"}, {"formatter", "@point"}};
  option["series"] = Json::array();
  return option;
}

Json line_series(const std::string& name, Json data) {
  return {{"type", "line"},         {"name", name},    {"showSymbol", false},
          {"symbol", "circle"},     {"symbolSize", 6}, {"lineStyle", {{"width", 2}}},
          {"data", std::move(data)}};
}

// ---- the pictures
// --------------------------------------------------------------------------------

class Pictures {
 public:
  Pictures(Connection& connection, std::string view, const PictureLimits& limits)
      : connection_(connection), view_(std::move(view)), limits_(limits) {}

  std::vector<Picture> make() {
    for_each_row(
        connection_,
        "SELECT collective FROM " + view_ + " WHERE " + kTimed +
            " GROUP BY 1 ORDER BY sum(seconds) DESC, 1 LIMIT " + number(limits_.collectives),
        [&](const Rows& rows, std::size_t r) { collectives_.emplace_back(rows.text(0, r)); });
    if (collectives_.empty()) return {};
    find_time();
    by_size();
    histogram("busbw-histogram", "Bus bandwidth of all operations", "bus bandwidth", "busbw",
              Unit::kBandwidth, "bandwidth");
    histogram("time-histogram", "Duration of all operations", "duration", "seconds", Unit::kSeconds,
              "seconds");
    boxes();
    if (last_ns_ > first_ns_) {
      over_time();
      communication();
      match_ranks(connection_, view_,
                  kTimed + " AND ranks > 1 AND sequence IS NOT NULL AND collective IN " +
                      synchronising_list());
      heat_maps();
      stragglers();
      skew();
      connection_.run("DROP TABLE matched; DROP TABLE matched_kinds");
    }
    connection_.run("DROP TABLE sizes; DROP TABLE shapes");
    return std::move(out_);
  }

 private:
  Picture& add(const char* name, const char* section, const std::string& title) {
    Picture& picture = out_.emplace_back();
    picture.name = name;
    picture.section = section;
    picture.title = title;
    picture.option = base_option();
    return picture;
  }

  [[nodiscard]] std::string of_collectives() const {
    std::string list;
    for (const std::string& c : collectives_) list += (list.empty() ? "" : ", ") + sql_literal(c);
    return "collective IN (" + list + ")";
  }

  void find_time() {
    for_each_row(connection_,
                 "SELECT min(time_ns), max(time_ns) FROM " + view_ + " WHERE " + kTimed,
                 [&](const Rows& rows, std::size_t r) {
                   first_ns_ = rows.integer(0, r);
                   last_ns_ = rows.integer(1, r);
                 });
  }

  /// Number of the bucket of `column`; the last moment belongs to the last bucket.
  [[nodiscard]] std::string bucket_of(const std::string& column, std::size_t buckets) const {
    const double width = static_cast<double>(last_ns_ - first_ns_) / static_cast<double>(buckets);
    return "least(CAST(floor((" + column + " - " + std::to_string(first_ns_) + ") / " +
           nlohmann::json(std::max(width, 1.0)).dump() + ") AS BIGINT), " + number(buckets - 1) +
           ")";
  }
  /// Its middle.
  [[nodiscard]] double bucket_ns(std::int64_t bucket, std::size_t buckets) const {
    const double width = static_cast<double>(last_ns_ - first_ns_) / static_cast<double>(buckets);
    return static_cast<double>(first_ns_) + (static_cast<double>(bucket) + 0.5) * width;
  }

  void by_size() {
    Picture& picture = add("busbw-by-size", "Bandwidth by size", "Bus bandwidth by message size");
    picture.text =
        "Points: operations, those of nearly equal size and bandwidth together (the larger, the "
        "more). Lines: median of each size. Low points beside a high line are operations that "
        "waited for a late rank.";
    Json& option = picture.option;
    option["xAxis"] = x_axis("message size", "bytes", "log");
    option["yAxis"] = y_axis("bus bandwidth", "bandwidth", "log");
    std::map<std::string, Json> points;
    std::map<std::string, Json> medians;
    double most = 1;
    for_each_row(
        connection_,
        "SELECT collective, avg(bytes) AS x, avg(busbw) AS y, count(*) AS n FROM " + view_ +
            " WHERE " + kTimed + " AND " + of_collectives() +
            " GROUP BY collective, round(log2(bytes) * 8), round(log2(busbw) * 8)"
            " ORDER BY n DESC, 1, 2, 3 LIMIT " +
            number(limits_.scatter),
        [&](const Rows& rows, std::size_t r) {
          const double n = rows.number(3, r);
          most = std::max(most, n);
          points[std::string(rows.text(0, r))].push_back({rows.number(1, r), rows.number(2, r), n});
        });
    picture.table = {
        "Bus bandwidth of each collective and message size; those with most time first",
        {{"Collective"},
         {"Size", Unit::kBytes},
         {"Operations", Unit::kCount},
         {"Mean", Unit::kBandwidth},
         {"5th percentile", Unit::kBandwidth},
         {"Median", Unit::kBandwidth},
         {"95th percentile", Unit::kBandwidth},
         {"Time, all ranks", Unit::kSeconds}},
        {}};
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE sizes AS SELECT *, row_number() OVER (ORDER BY s DESC,"
        " c, b) AS id FROM (SELECT collective AS c, bytes AS b, count(*) AS n, avg(busbw) AS"
        " m, sum(seconds) AS s FROM " +
        view_ + " WHERE " + kTimed + " AND " + of_collectives() +
        " GROUP BY 1, 2 ORDER BY s DESC, c, b LIMIT " + number(limits_.sizes) + ")");
    const auto quantiles =
        quantiles_of(connection_,
                     "SELECT id, busbw FROM " + view_ +
                         " JOIN sizes ON collective = c AND bytes = b WHERE " + kTimed,
                     {0.05, 0.5, 0.95});
    for_each_row(
        connection_, "SELECT c, b, n, m, s, id FROM sizes ORDER BY id",
        [&](const Rows& rows, std::size_t r) {
          const std::vector<double>& q = quantiles.at(rows.integer(5, r)).values;
          picture.table.rows.push_back({text_at(rows, 0, r), rows.integer(1, r), rows.integer(2, r),
                                        rows.number(3, r), q[0], q[1], q[2], rows.number(4, r)});
          medians[std::string(rows.text(0, r))].push_back({rows.integer(1, r), q[1]});
        });
    for (const std::string& collective : collectives_) {
      const std::string name = printable(collective);
      Json scatter = {{"type", "scatter"},
                      {"name", name},
                      {"dimensions", {"message size", "bus bandwidth", "operations"}},
                      {"itemStyle", {{"opacity", 0.55}}},
                      {"symbolSize", "@symbol:" + nlohmann::json(most).dump()},
                      {"data", std::move(points[collective])}};
      if (scatter["data"].is_null()) scatter["data"] = Json::array();
      option["series"].push_back(std::move(scatter));
      Json data = std::move(medians[collective]);
      if (data.is_null()) continue;
      std::sort(data.begin(), data.end());
      Json line = line_series(name, std::move(data));
      line["dimensions"] = {"message size", "bus bandwidth"};
      line["showSymbol"] = true;
      option["series"].push_back(std::move(line));
    }
  }

  static Cells row_cells(const Rows& rows, std::size_t r, const char* kinds) {
    Cells cells;
    for (std::size_t c = 0; kinds[c] != '\0' && c < rows.columns(); ++c) {
      if (rows.is_null(c, r))
        cells.emplace_back(nullptr);
      else if (kinds[c] == 't')
        cells.emplace_back(text_at(rows, c, r));
      else if (kinds[c] == 'i')
        cells.emplace_back(rows.integer(c, r));
      else
        cells.emplace_back(rows.number(c, r));
    }
    return cells;
  }

  /// Bins of equal width on a logarithmic scale, of equal borders in all runs.
  void histogram(const char* name, const std::string& title, const std::string& what,
                 const std::string& column, Unit unit, const std::string& format) {
    Picture& picture = add(name, "Distributions", title);
    picture.text = "How many operations had which " + what +
                   ". Bins are 4.4 % wide. Two hills are two kinds of operation, or two states of "
                   "the machine.";
    picture.table = {title + ", bins 4.4 % wide",
                     {{"Collective"}, {"From", unit}, {"To", unit}, {"Operations", Unit::kCount}},
                     {}};
    const std::string bin = "CAST(floor(log2(" + column + ") * " +
                            nlohmann::json(kBinsPerOctave).dump() + ") AS BIGINT)";
    std::map<std::string, std::map<std::int64_t, std::int64_t>> counts;
    std::int64_t low = INT64_MAX;
    std::int64_t high = INT64_MIN;
    for_each_row(connection_,
                 "SELECT collective, " + bin + " AS bin, count(*) FROM " + view_ + " WHERE " +
                     kTimed + " AND " + of_collectives() + " GROUP BY 1, 2 ORDER BY 1, 2",
                 [&](const Rows& rows, std::size_t r) {
                   const std::int64_t at = rows.integer(1, r);
                   counts[std::string(rows.text(0, r))][at] = rows.integer(2, r);
                   low = std::min(low, at);
                   high = std::max(high, at);
                 });
    const auto border = [](std::int64_t at) {
      return std::exp2(static_cast<double>(at) / kBinsPerOctave);
    };
    // Far more octaves than that are rubbish at the lower end: drawn are the upper ones.
    low = std::max(low, high - static_cast<std::int64_t>(kMostBins) + 1);
    picture.option["xAxis"] = x_axis(what, format, "category");
    picture.option["xAxis"]["data"] = Json::array();
    for (std::int64_t at = low; at <= high; ++at)
      picture.option["xAxis"]["data"].push_back(nlohmann::json(border(at)).dump());
    picture.option["yAxis"] = y_axis("operations", "count", "value");
    picture.option["tooltip"] = {{"trigger", "item"}, {"formatter", "@bin:" + format}};
    for (const std::string& collective : collectives_) {
      Json data = Json::array();
      const auto& of = counts[collective];
      for (std::int64_t at = low; at <= high; ++at) {
        const auto found = of.find(at);
        data.push_back(found == of.end() ? 0 : found->second);
      }
      for (const auto& [at, count] : of)
        picture.table.rows.push_back({printable(collective), border(at), border(at + 1), count});
      picture.option["series"].push_back({{"type", "bar"},
                                          {"name", printable(collective)},
                                          {"stack", "all"},
                                          {"barCategoryGap", "0%"},
                                          {"data", std::move(data)}});
    }
  }

  void boxes() {
    Picture& picture =
        add("busbw-box", "Distributions", "Spread of the bus bandwidth of the most used shapes");
    picture.text =
        "Box: the middle half of the operations, with the median. Whiskers: from the 5th "
        "to the 95th percentile. Long lower whiskers are operations that waited.";
    picture.table = {"Bus bandwidth of the shapes with most time",
                     {{"Collective"},
                      {"Size", Unit::kBytes},
                      {"Algorithm"},
                      {"Protocol"},
                      {"Operations", Unit::kCount},
                      {"5th percentile", Unit::kBandwidth},
                      {"25th", Unit::kBandwidth},
                      {"Median", Unit::kBandwidth},
                      {"75th", Unit::kBandwidth},
                      {"95th", Unit::kBandwidth}},
                     {}};
    Json names = Json::array();
    Json data = Json::array();
    // Only the shapes that are drawn are sorted.
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE shapes AS SELECT *, row_number() OVER (ORDER BY s DESC, c, "
        "b, a,"
        " p) AS id FROM (SELECT collective AS c, bytes AS b, algorithm AS a, protocol AS p, "
        "sum(seconds)"
        " AS s FROM " +
        view_ + " WHERE " + kTimed + " GROUP BY 1, 2, 3, 4 ORDER BY s DESC, c, b, a, p LIMIT " +
        number(limits_.shapes) + ")");
    const auto quantiles = quantiles_of(
        connection_,
        "SELECT id, busbw FROM " + view_ +
            " JOIN shapes ON collective = c AND bytes = b AND algorithm IS NOT DISTINCT FROM a AND"
            " protocol IS NOT DISTINCT FROM p WHERE " +
            kTimed,
        {0.05, 0.25, 0.5, 0.75, 0.95});
    for_each_row(connection_, "SELECT c, b, a, p, id FROM shapes ORDER BY id",
                 [&](const Rows& rows, std::size_t r) {
                   const GroupQuantiles& group = quantiles.at(rows.integer(4, r));
                   Cells cells = row_cells(rows, r, "titt");
                   cells.emplace_back(group.count);
                   std::string label = text_at(rows, 0, r) + " " +
                                       format_bytes(static_cast<std::uint64_t>(rows.integer(1, r)));
                   for (const std::size_t c : {std::size_t{2}, std::size_t{3}}) {
                     if (!rows.is_null(c, r)) label += " " + text_at(rows, c, r);
                   }
                   Json box = Json::array();
                   for (const double q : group.values) {
                     cells.emplace_back(q);
                     box.push_back(q);
                   }
                   picture.table.rows.push_back(std::move(cells));
                   names.push_back(label);
                   data.push_back(std::move(box));
                 });
    std::reverse(names.begin(), names.end());
    std::reverse(data.begin(), data.end());
    picture.height = 110 + 24 * static_cast<int>(data.size());
    picture.option["legend"]["show"] = false;
    picture.option["grid"] = {
        {"left", kNamesWidth + 20}, {"right", 30}, {"top", 10}, {"bottom", 55}};
    picture.option["xAxis"] = x_axis("bus bandwidth", "bandwidth", "value");
    picture.option["yAxis"] = names_axis(std::move(names));
    picture.option["tooltip"]["formatter"] = "@box:bandwidth";
    picture.option["series"].push_back({{"type", "boxplot"},
                                        {"name", "bus bandwidth"},
                                        {"boxWidth", {4, 16}},
                                        {"data", std::move(data)}});
  }

  void over_time() {
    Picture& picture = add("busbw-over-time", "Over the run", "Bus bandwidth over the run");
    picture.text =
        "Bus bytes of all ranks divided by their time in the collective, waiting included. A "
        "step down that stays is a change of the machine; a dip is a disturbance.";
    picture.table = {"Bus bandwidth in each part of the run",
                     {{"Collective"},
                      {"Time", Unit::kTime},
                      {"Operations", Unit::kCount},
                      {"Bus bandwidth", Unit::kBandwidth},
                      {"Time in it, all ranks", Unit::kSeconds}},
                     {}};
    std::map<std::string, Json> lines;
    for_each_row(
        connection_,
        "SELECT collective, " + bucket_of("time_ns", limits_.buckets) +
            " AS bucket, count(*), sum(busbw * seconds) / sum(seconds), sum(seconds) FROM " +
            view_ + " WHERE " + kTimed + " AND " + of_collectives() +
            " GROUP BY 1, 2 ORDER BY 1, 2",
        [&](const Rows& rows, std::size_t r) {
          const double at = bucket_ns(rows.integer(1, r), limits_.buckets);
          lines[std::string(rows.text(0, r))].push_back({milliseconds(at), rows.number(3, r)});
          picture.table.rows.push_back(
              {text_at(rows, 0, r), at, rows.integer(2, r), rows.number(3, r), rows.number(4, r)});
        });
    picture.option["xAxis"] = time_axis();
    picture.option["yAxis"] = y_axis("bus bandwidth", "bandwidth", "value");
    picture.option["tooltip"] = {{"trigger", "axis"}, {"valueFormatter", "@bandwidth"}};
    for (const std::string& collective : collectives_) {
      Json data = std::move(lines[collective]);
      if (!data.is_null())
        picture.option["series"].push_back(line_series(printable(collective), std::move(data)));
    }
  }

  void communication() {
    Picture& picture =
        add("communication-over-time", "Over the run", "Time in communication over the run");
    picture.text =
        "Seconds per second that a rank spends in each collective, on average. Operations "
        "that overlap on one GPU count each.";
    picture.table = {"Seconds per second and process in each part of the run",
                     {{"Collective"}, {"Time", Unit::kTime}, {"Share", Unit::kShare}},
                     {}};
    double processes = 1;
    for_each_row(
        connection_,
        "SELECT count(*) FROM (SELECT DISTINCT job, run, node, pid, coalesce(gpu, '') FROM " +
            view_ + " WHERE " + kTimed + ")",
        [&](const Rows& rows, std::size_t r) { processes = std::max(1.0, rows.number(0, r)); });
    const double seconds = static_cast<double>(last_ns_ - first_ns_) * 1e-9 /
                           static_cast<double>(limits_.buckets) * processes;
    std::map<std::string, Json> lines;
    for_each_row(connection_,
                 "SELECT collective, " + bucket_of("time_ns", limits_.buckets) +
                     " AS bucket, sum(seconds) FROM " + view_ + " WHERE " + kTimed + " AND " +
                     of_collectives() + " GROUP BY 1, 2 ORDER BY 1, 2",
                 [&](const Rows& rows, std::size_t r) {
                   const double at = bucket_ns(rows.integer(1, r), limits_.buckets);
                   const double share = rows.number(2, r) / seconds;
                   lines[std::string(rows.text(0, r))].push_back({milliseconds(at), share});
                   picture.table.rows.push_back({text_at(rows, 0, r), at, share});
                 });
    picture.option["xAxis"] = time_axis();
    picture.option["yAxis"] = y_axis("seconds per second", "share", "value");
    picture.option["tooltip"] = {{"trigger", "axis"}, {"valueFormatter", "@share"}};
    for (const std::string& collective : collectives_) {
      Json data = std::move(lines[collective]);
      if (data.is_null()) continue;
      Json series = line_series(printable(collective), std::move(data));
      series["areaStyle"] = {{"opacity", 0.25}};
      picture.option["series"].push_back(std::move(series));
    }
  }

  // ---- ranks: only operations that all ranks of a communicator tell of are compared

  struct Compared {
    std::string job, communicator, collective, name;
    std::int64_t kind = 0, run = 0, first = 0, last = 0;
  };

  void heat_maps() {
    std::vector<Compared> compared;
    // Of each communicator the collective with most time, of those that all ranks tell of.
    for_each_row(
        connection_,
        "WITH sums AS (SELECT kind, min(sequence) AS first, max(sequence) AS last, sum(mean) AS s"
        " FROM matched GROUP BY 1 HAVING last > first), best AS (SELECT * FROM sums JOIN"
        " matched_kinds USING (kind) QUALIFY row_number() OVER (PARTITION BY job, run, communicator"
        " ORDER BY s DESC, collective) = 1), drawn AS (SELECT * FROM best ORDER BY s DESC, job, "
        "run,"
        " communicator LIMIT " +
            number(limits_.communicators) +
            ") SELECT job, run, communicator, collective, first, last, kind,"
            " (SELECT max(communicator_name) FROM " +
            view_ +
            " AS o WHERE o.communicator = drawn.communicator)"
            " FROM drawn ORDER BY s DESC, 1, 2, 3",
        [&](const Rows& rows, std::size_t r) {
          compared.push_back({std::string(rows.text(0, r)), std::string(rows.text(2, r)),
                              std::string(rows.text(3, r)), text_at(rows, 7, r), rows.integer(6, r),
                              rows.integer(1, r), rows.integer(4, r), rows.integer(5, r)});
        });
    int index = 0;
    for (const Compared& c : compared) heat_map(c, ++index);
  }

  static std::string called(const std::string& communicator, const std::string& name) {
    return name.empty() ? printable(communicator) : name + " (" + printable(communicator) + ")";
  }

  struct Cell {
    double seconds = 0, time_ns = 0;
  };
  /// visit(rank, bucket, cell), in this order: large communicators have millions.
  template <typename Visit>
  void for_each_cell(Visit&& visit) {
    for_each_row(
        connection_, "SELECT rank, bucket, seconds, time_ns FROM heat ORDER BY rank, bucket",
        [&](const Rows& rows, std::size_t r) {
          visit(rows.integer(0, r), rows.integer(1, r), Cell{rows.number(2, r), rows.number(3, r)});
        });
  }

  void heat_map(const Compared& c, int index) {
    const std::int64_t span = c.last - c.first + 1;
    const auto buckets =
        std::min<std::int64_t>(static_cast<std::int64_t>(limits_.heat_buckets), span);
    const std::string where = " job = " + sql_literal(c.job) +
                              " AND coalesce(run, 0) = " + std::to_string(c.run) +
                              " AND communicator = " + sql_literal(c.communicator) +
                              " AND collective = " + sql_literal(c.collective);
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE heat AS SELECT rank, (sequence - " + std::to_string(c.first) +
        ") * " + std::to_string(buckets) + " // " + std::to_string(span) +
        " AS bucket, avg(o.seconds) AS seconds, avg(o.time_ns) AS time_ns FROM " + view_ +
        " AS o SEMI JOIN (SELECT sequence FROM matched WHERE kind = " + std::to_string(c.kind) +
        ") AS m USING (sequence) WHERE" + where + " AND " + kTimed + " GROUP BY 1, 2");
    std::map<std::int64_t, Cell> most;  // by bucket
    for_each_cell([&](std::int64_t, std::int64_t bucket, const Cell& cell) {
      Cell& m = most[bucket];
      m.seconds = std::max(m.seconds, cell.seconds);
      m.time_ns = std::max(m.time_ns, cell.time_ns);
    });
    std::vector<std::pair<double, std::int64_t>> by_lateness;
    for_each_cell([&](std::int64_t rank, std::int64_t bucket, const Cell& cell) {
      if (by_lateness.empty() || by_lateness.back().second != rank)
        by_lateness.emplace_back(0, rank);
      by_lateness.back().first -= most[bucket].seconds - cell.seconds;
    });
    const std::size_t ranks_seen = by_lateness.size();
    std::sort(by_lateness.begin(), by_lateness.end());
    if (by_lateness.size() > limits_.heat_ranks) by_lateness.resize(limits_.heat_ranks);
    std::map<std::int64_t, std::map<std::int64_t, Cell>> shown;  // rank, bucket
    std::string shown_list;
    for (const auto& [late, rank] : by_lateness) {
      shown[rank];
      shown_list += (shown_list.empty() ? "" : ", ") + std::to_string(rank);
    }
    for_each_cell([&](std::int64_t rank, std::int64_t bucket, const Cell& cell) {
      if (const auto row = shown.find(rank); row != shown.end()) row->second[bucket] = cell;
    });
    connection_.run("DROP TABLE heat");
    std::map<std::int64_t, std::string> places;
    if (!shown.empty())
      for_each_row(connection_,
                   "SELECT rank, any_value(node) FROM " + view_ + " WHERE" + where + " AND " +
                       kTimed + " AND rank IN (" + shown_list + ") GROUP BY 1",
                   [&](const Rows& rows, std::size_t r) {
                     places[rows.integer(0, r)] = text_at(rows, 1, r);
                   });

    Picture& picture = add(("ranks-" + std::to_string(index)).c_str(), "Ranks",
                           "Who comes late to " + printable(c.collective) + " of communicator " +
                               called(c.communicator, c.name));
    picture.text =
        "Bright: a rank that spends less time in the collective than the rank that waits longest, "
        "because it comes later. A row that stays bright is a straggler; a column, a disturbance "
        "of "
        "all." +
        std::string(shown.size() < ranks_seen
                        ? " Shown are the " + std::to_string(shown.size()) + " latest of " +
                              std::to_string(ranks_seen) + " ranks."
                        : "");
    picture.table = {"Mean lateness of each rank over all parts of the run",
                     {{"Rank", Unit::kCount},
                      {"Node"},
                      {"Mean lateness", Unit::kSeconds},
                      {"Most in a part", Unit::kSeconds},
                      {"Since", Unit::kTime}},
                     {}};
    Json ranks = Json::array();
    Json columns = Json::array();
    for (const auto& [bucket, m] : most)
      columns.push_back(nlohmann::json(milliseconds(m.time_ns)).dump());
    Json data = Json::array();
    double hottest = 0;
    for (const auto& [rank, row] : shown) {
      ranks.push_back(std::to_string(rank) + (places[rank].empty() ? "" : " " + places[rank]));
      double sum = 0;
      double worst = -1;
      double since = 0;
      std::int64_t x = 0;
      for (const auto& [bucket, m] : most) {
        const auto cell = row.find(bucket);
        if (cell != row.end()) {
          const double late = m.seconds - cell->second.seconds;
          sum += late;
          if (late > worst) {
            worst = late;
            since = m.time_ns;
          }
          hottest = std::max(hottest, late);
          data.push_back({x, ranks.size() - 1, late});
        }
        ++x;
      }
      picture.table.rows.push_back(
          {rank, places[rank], sum / static_cast<double>(row.size()), worst, since});
    }
    std::stable_sort(picture.table.rows.begin(), picture.table.rows.end(),
                     [](const Cells& a, const Cells& b) { return a[2] > b[2]; });
    picture.table.columns[4].title = "Latest at";
    picture.height = 150 + 16 * std::max(6, static_cast<int>(ranks.size()));
    picture.option["legend"]["show"] = false;
    picture.option["grid"] = {
        {"left", kNamesWidth + 20}, {"right", 20}, {"top", 10}, {"bottom", 100}};
    picture.option["xAxis"] =
        x_axis("time (UTC), a column is an equal number of operations", "clock", "category");
    picture.option["xAxis"]["data"] = std::move(columns);
    picture.option["yAxis"] = names_axis(std::move(ranks));
    picture.option["yAxis"]["inverse"] = true;
    picture.option["tooltip"]["formatter"] = "@heat:seconds";
    picture.option["visualMap"] = {{"min", 0},
                                   {"max", hottest > 0 ? hottest : 1},
                                   {"calculable", false},
                                   {"orient", "horizontal"},
                                   {"left", "center"},
                                   {"bottom", 0},
                                   {"formatter", "@seconds"},
                                   {"inRange", {{"color", "@heat-colours"}}}};
    picture.option["series"].push_back(
        {{"type", "heatmap"}, {"name", "lateness"}, {"data", std::move(data)}});
  }

  void stragglers() {
    Picture& picture =
        add("stragglers", "Stragglers and skew", "How long the others waited for each rank");
    picture.text =
        "For every operation that all ranks tell of, the rank that spent least time in it came "
        "last; what the others spent more is what they waited for it. Long bars at few ranks "
        "are stragglers; equal bars at all are chance.";
    picture.table = {"Ranks by the time that others waited for them",
                     {{"Communicator"},
                      {"Rank", Unit::kCount},
                      {"Node"},
                      {"Operations", Unit::kCount},
                      {"Came last in", Unit::kShare},
                      {"Others waited, mean of an operation", Unit::kSeconds},
                      {"Others waited, all operations", Unit::kSeconds}},
                     {}};
    Json names = Json::array();
    Json data = Json::array();
    for_each_row(
        connection_,
        "WITH totals AS (SELECT job, run, communicator, count(*) AS n FROM matched JOIN"
        " matched_kinds USING (kind) GROUP BY 1, 2, 3), lasts AS (SELECT job, run, communicator,"
        " last_rank, count(*) AS times, sum(most - least) AS waited FROM matched JOIN matched_kinds"
        " USING (kind) WHERE most > least GROUP BY 1, 2, 3, 4 ORDER BY waited DESC, communicator,"
        " last_rank LIMIT " +
            number(limits_.stragglers) +
            ") SELECT l.communicator, last_rank, (SELECT max(node) FROM " + view_ +
            " AS o WHERE o.communicator = l.communicator AND o.rank = l.last_rank AND o.job = "
            "l.job),"
            " n, times / n, waited / times, waited, (SELECT max(communicator_name) FROM " +
            view_ +
            " AS o WHERE o.communicator = l.communicator) FROM lasts AS l JOIN totals USING"
            " (job, run, communicator) ORDER BY waited DESC, 1, 2",
        [&](const Rows& rows, std::size_t r) {
          picture.table.rows.push_back({called(std::string(rows.text(0, r)), text_at(rows, 7, r)),
                                        rows.integer(1, r), text_at(rows, 2, r), rows.integer(3, r),
                                        rows.number(4, r), rows.number(5, r), rows.number(6, r)});
          const std::string communicator =
              text_at(rows, 7, r).empty() ? text_at(rows, 0, r) : text_at(rows, 7, r);
          names.push_back("rank " + std::to_string(rows.integer(1, r)) + " of " + communicator +
                          (rows.is_null(2, r) ? "" : ", " + text_at(rows, 2, r)));
          data.push_back(rows.number(6, r));
        });
    if (data.empty()) {
      out_.pop_back();
      return;
    }
    std::reverse(names.begin(), names.end());
    std::reverse(data.begin(), data.end());
    picture.height = 110 + 22 * static_cast<int>(data.size());
    picture.option["legend"]["show"] = false;
    picture.option["grid"] = {
        {"left", kNamesWidth + 20}, {"right", 30}, {"top", 10}, {"bottom", 55}};
    picture.option["xAxis"] = x_axis("longest wait of another rank, summed", "seconds", "value");
    picture.option["yAxis"] = names_axis(std::move(names));
    picture.option["tooltip"]["formatter"] = "@bar:seconds";
    picture.option["series"].push_back(
        {{"type", "bar"}, {"name", "others waited"}, {"data", std::move(data)}});
  }

  void skew() {
    Picture& picture =
        add("skew-over-time", "Stragglers and skew", "Skew of the ranks' times over the run");
    picture.text =
        "Longest less shortest time of the ranks in one operation: how far they were apart "
        "when it began. The median tells the usual, the 95th percentile the worst.";
    picture.table = {"Skew in each part of the run",
                     {{"Time", Unit::kTime},
                      {"Operations", Unit::kCount},
                      {"Median", Unit::kSeconds},
                      {"95th percentile", Unit::kSeconds},
                      {"Maximum", Unit::kSeconds}},
                     {}};
    Json median = Json::array();
    Json high = Json::array();
    const auto quantiles = quantiles_of(
        connection_,
        "SELECT " + bucket_of("time_ns", limits_.buckets) + ", most - least FROM matched",
        {0.5, 0.95, 1});
    for (const auto& [bucket, group] : quantiles) {
      const double at = bucket_ns(bucket, limits_.buckets);
      median.push_back({milliseconds(at), group.values[0]});
      high.push_back({milliseconds(at), group.values[1]});
      picture.table.rows.push_back(
          {at, group.count, group.values[0], group.values[1], group.values[2]});
    }
    if (median.empty()) {
      out_.pop_back();
      return;
    }
    picture.option["xAxis"] = time_axis();
    picture.option["yAxis"] = y_axis("skew", "seconds", "value");
    picture.option["tooltip"] = {{"trigger", "axis"}, {"valueFormatter", "@seconds"}};
    picture.option["series"].push_back(line_series("median", std::move(median)));
    picture.option["series"].push_back(line_series("95th percentile", std::move(high)));
  }

  Connection& connection_;
  std::string view_;
  PictureLimits limits_;
  std::vector<std::string> collectives_;
  std::int64_t first_ns_ = 0, last_ns_ = 0;
  std::vector<Picture> out_;
};

}  // namespace

const std::string& synchronising_list() {
  static const std::string kList = "('AllReduce', 'AllGather', 'ReduceScatter', 'AlltoAll')";
  return kList;
}

RunHead run_head(Connection& connection, const std::string& view) {
  RunHead head;
  const auto distinct = [&](const char* column) {
    return texts(connection, std::string("SELECT DISTINCT ") + column + " FROM " + view +
                                 " WHERE " + column + " IS NOT NULL ORDER BY 1");
  };
  head.jobs = distinct("job");
  head.clusters = distinct("cluster");
  head.nodes = distinct("node");
  head.nccl_versions = distinct("nccl_version");
  head.plugin_versions = distinct("plugin_version");
  head.sources = distinct("source");
  for_each_row(
      connection,
      "SELECT min(time_ns), max(time_ns), (SELECT count(*) FROM (SELECT DISTINCT file FROM " +
          view +
          " WHERE file IS NOT NULL)), (SELECT count(*) FROM (SELECT DISTINCT job, run,"
          " node, pid FROM " +
          view + ")), (SELECT count(*) FROM (SELECT DISTINCT job, run, communicator FROM " + view +
          ")), count(*), count(seconds), sum(bytes), sum(seconds) FROM " + view,
      [&](const Rows& rows, std::size_t r) {
        const auto count = [&](std::size_t c) {
          return static_cast<std::uint64_t>(rows.integer(c, r));
        };
        head.first_ns = rows.integer(0, r);
        head.last_ns = rows.integer(1, r);
        head.files = count(2);
        head.processes = count(3);
        head.communicators = count(4);
        head.operations = count(5);
        head.timed = count(6);
        head.bytes = rows.is_null(7, r) ? 0 : rows.number(7, r);
        head.seconds = rows.is_null(8, r) ? 0 : rows.number(8, r);
      });
  return head;
}

std::vector<Picture> make_pictures(Connection& connection, const std::string& view,
                                   const PictureLimits& limits) {
  return Pictures(connection, view, limits).make();
}

}  // namespace ncclscope::cli::report
