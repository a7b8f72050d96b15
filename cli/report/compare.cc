// SPDX-License-Identifier: Apache-2.0
#include "cli/report/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "cli/report/quantiles.h"
#include "cli/report/steps.h"
#include "cli/report/verdicts.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFirstOperations = 3;  // of a communicator: they set up connections
constexpr int kFewestInBlock = 3;
constexpr std::size_t kMostTold = 8;  // changes of a kind one by one; then in short
/// Those with most time: where every message has a size of its own there are millions.
constexpr std::size_t kMostShapes = 10'000;

std::string percent(double share, int digits = 3) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.*g %%", digits, share * 100);
  return text;
}

std::string bandwidth(double value) {
  return value > 0 ? format_bandwidth(value) : "-";
}

using ShapeKey = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::string>;

/// The columns of a shape. NULL is a value like others.
std::string shape_columns(bool with_dimension) {
  return std::string(
             "collective, bytes, coalesce(ranks, 0) AS ranks, coalesce(nodes, 0) AS nodes, ") +
         (with_dimension ? "coalesce(dimension, '')" : "''") + " AS dimension";
}
/// Algorithm and protocol of operations whose input does not tell them.
constexpr std::string_view kUnknownWay = "?/?";
const std::string kTimed = "busbw > 0 AND bytes > 0 AND seconds > 0 AND coalesce(ranks, 2) > 1";

struct Blocks {
  std::vector<double> user, transfer;
};

class Comparer {
 public:
  Comparer(Connection& connection, const CompareOptions& options, Comparison& out)
      : connection_(connection), options_(options), out_(out) {}

  void compare(const std::string& view_a, const std::string& view_b) {
    // Logs of NCCL Inspector know no dimensions: an archive's shapes are theirs without.
    with_dimension_ = knows(view_a, "dimension") && knows(view_b, "dimension");
    shape_ = shape_columns(with_dimension_);
    choose_shapes(view_a, view_b);
    look_at(view_a, out_.a.head, 0);
    look_at(view_b, out_.b.head, 1);
    out_.step = effect_of(step_seconds(connection_, view_a), step_seconds(connection_, view_b));
    for (auto& [key, number] : numbers_) {
      Found& found = shapes_[number];
      ComparedShape& shape = found.shape;
      std::tie(shape.collective, shape.bytes, shape.ranks, shape.nodes, shape.dimension) = key;
      shape.user = effect_of(found.blocks[0].user, found.blocks[1].user);
      shape.transfer = effect_of(found.blocks[0].transfer, found.blocks[1].transfer);
      compare_mix(found);
      out_.shapes.push_back(std::move(shape));
    }
    std::stable_sort(out_.shapes.begin(), out_.shapes.end(),
                     [](const ComparedShape& a, const ComparedShape& b) {
                       return a.share_a + a.share_b > b.share_a + b.share_b;
                     });
    connection_.run("DROP TABLE compared_shapes; DROP TABLE origins");
    tell();
    if (out_.shapes.size() > options_.shapes) out_.shapes.resize(options_.shapes);
  }

 private:
  struct Found {
    ComparedShape shape;
    std::array<Blocks, 2> blocks;
    std::array<std::map<std::string, double>, 2> mix;  // operations by algorithm and protocol
  };

  static ShapeKey key_of(const Rows& rows, std::size_t r) {
    return {std::string(rows.text(0, r)), rows.integer(1, r), rows.integer(2, r),
            rows.integer(3, r), std::string(rows.text(4, r))};
  }

  [[nodiscard]] bool knows(const std::string& view, const std::string& column) const {
    bool any = false;
    for_each_row(connection_, "SELECT count(" + column + ") FROM " + view,
                 [&](const Rows& rows, std::size_t r) { any = rows.integer(0, r) > 0; });
    return any;
  }

  /// The shapes of the runs get numbers: table compared_shapes.
  void choose_shapes(const std::string& view_a, const std::string& view_b) {
    const auto shares = [&](const std::string& view) {
      return "SELECT " + shape_ + ", sum(seconds) / (SELECT sum(seconds) FROM " + view + " WHERE " +
             kTimed + ") AS share FROM " + view + " WHERE " + kTimed + " GROUP BY ALL";
    };
    const std::string keys = "collective, bytes, ranks, nodes, dimension";
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE compared_shapes AS SELECT row_number() OVER () - 1 AS shape, "
        "* FROM (SELECT " +
        keys + ", sum(share) AS share FROM (" + shares(view_a) + " UNION ALL " + shares(view_b) +
        ") GROUP BY ALL ORDER BY share DESC, " + keys + " LIMIT " + std::to_string(kMostShapes) +
        ")");
    for_each_row(connection_, "SELECT " + keys + ", shape FROM compared_shapes",
                 [&](const Rows& rows, std::size_t r) {
                   numbers_[key_of(rows, r)] = static_cast<std::size_t>(rows.integer(5, r));
                 });
    shapes_.resize(numbers_.size());
  }

  [[nodiscard]] Found& found(const Rows& rows, std::size_t r) {
    return shapes_[static_cast<std::size_t>(rows.integer(0, r))];
  }

  /// FROM: operations `o` that `where` lets through, with their shape `s`.
  [[nodiscard]] std::string numbered(const std::string& view, const std::string& where) const {
    return " FROM (SELECT * FROM " + view + " WHERE " + where +
           ") AS o JOIN compared_shapes AS s ON o.collective IS NOT DISTINCT FROM s.collective AND"
           " o.bytes = s.bytes AND coalesce(o.ranks, 0) = s.ranks AND coalesce(o.nodes, 0) ="
           " s.nodes AND " +
           std::string(with_dimension_ ? "coalesce(o.dimension, '') = s.dimension" : "true");
  }

  void look_at(const std::string& view, const RunHead& head, std::size_t side) {
    double all = 0;
    for_each_row(connection_, "SELECT sum(seconds) FROM " + view + " WHERE " + kTimed,
                 [&](const Rows& rows, std::size_t r) { all = rows.number(0, r); });
    for_each_row(connection_,
                 "SELECT s.shape, coalesce(o.algorithm, '?') || '/' || coalesce(o.protocol, '?'),"
                 " count(*), sum(o.seconds)" +
                     numbered(view, kTimed) + " GROUP BY 1, 2 ORDER BY 1, 2",
                 [&](const Rows& rows, std::size_t r) {
                   Found& of = found(rows, r);
                   of.mix[side][printable(rows.text(1, r))] += rows.number(2, r);
                   (side == 0 ? of.shape.operations_a : of.shape.operations_b) +=
                       static_cast<std::uint64_t>(rows.integer(2, r));
                   (side == 0 ? of.shape.share_a : of.shape.share_b) += rows.number(3, r) / all;
                 });
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE origins AS SELECT row_number() OVER () AS origin, * FROM"
        " (SELECT DISTINCT job, run, communicator FROM " +
        view + " WHERE " + kTimed + ")");
    const std::int64_t width =
        (head.last_ns - head.first_ns) / static_cast<std::int64_t>(options_.blocks) + 1;
    // An operation is one sample, however many ranks tell of it. Send and Recv are each rank's own.
    // Of each there is a row for the time being, perhaps as many as lines: of numbers alone, which
    // DuckDB can put on disk.
    for_each_row(
        connection_,
        "SELECT shape, (t - " + std::to_string(head.first_ns) + ") // " + std::to_string(width) +
            " AS block, sum(bus) / sum(spent), sum(fastest) FILTER (complete) / sum(least) FILTER"
            " (complete), count(*), count(*) FILTER (complete) FROM (SELECT s.shape, q.origin,"
            " o.sequence, CASE WHEN o.collective IN ('Send', 'Recv') OR o.sequence IS NULL THEN"
            " o.rank END AS own, CASE WHEN o.sequence IS NULL THEN o.time_ns END AS moment,"
            " min(o.time_ns) AS t, sum(o.busbw * o.seconds) AS bus, sum(o.seconds) AS spent,"
            " min(o.seconds) AS least, max(o.busbw) * min(o.seconds) AS fastest,"
            " max(o.collective IN ('Send', 'Recv')) OR count(*) >= max(s.ranks) AS complete" +
            numbered(view, kTimed + " AND coalesce(sequence, " + std::to_string(kFirstOperations) +
                               ") >= " + std::to_string(kFirstOperations)) +
            " JOIN origins AS q ON o.job IS NOT DISTINCT FROM q.job AND o.run IS NOT DISTINCT FROM"
            " q.run AND o.communicator IS NOT DISTINCT FROM q.communicator GROUP BY 1, 2, 3, 4, 5)"
            " GROUP BY 1, 2 HAVING count(*) >= " +
            std::to_string(kFewestInBlock) + " ORDER BY 1, 2",
        [&](const Rows& rows, std::size_t r) {
          Blocks& blocks = found(rows, r).blocks[side];
          blocks.user.push_back(rows.number(2, r));
          // Where few ranks tell, a faster one may be among the silent.
          if (rows.number(5, r) >= 0.99 * rows.number(4, r) && !rows.is_null(3, r))
            blocks.transfer.push_back(rows.number(3, r));
        });
  }

  /// Where one side does not tell how, nothing is known to have changed.
  void compare_mix(Found& found) const {
    std::array<double, 2> all{};
    for (std::size_t side = 0; side < 2; ++side) {
      found.mix[side].erase(std::string(kUnknownWay));
      for (const auto& [how, n] : found.mix[side]) all[side] += n;
    }
    double moved = 0;
    std::set<std::string> ways;
    for (const auto& mix : found.mix) {
      for (const auto& [how, n] : mix) ways.insert(how);
    }
    for (const std::string& how : ways) {
      const auto share = [&](std::size_t side) {
        const auto at = found.mix[side].find(how);
        return at == found.mix[side].end() ? 0.0 : at->second / all[side];
      };
      moved += std::fabs(share(0) - share(1)) / 2;
    }
    found.shape.algorithms_a = mix_text(found.mix[0], all[0]);
    found.shape.algorithms_b = mix_text(found.mix[1], all[1]);
    found.shape.algorithms_changed = all[0] > 0 && all[1] > 0 && moved >= options_.least_mix;
  }

  static std::string mix_text(const std::map<std::string, double>& mix, double all) {
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [how, n] : mix) sorted.emplace_back(-n, how);
    std::sort(sorted.begin(), sorted.end());
    std::string out;
    for (const auto& [n, how] : sorted)
      out += (out.empty() ? "" : ", ") + how + " " + percent(-n / all);
    return out;
  }

  // ---- words

  void add(Insight::Weight weight, const char* kind, std::string text, std::string detail = "") {
    out_.changes.push_back({weight, kind, std::move(text), std::move(detail), 0, 0});
  }

  static std::string effect_text(const Effect& e) {
    return percent(e.ratio) + " of A (99.9 %: " + percent(e.low) + " to " + percent(e.high) +
           "), " + bandwidth(e.a) + " before, " + bandwidth(e.b) + " now, Cliff's delta " +
           delta_text(e);
  }

  static std::string delta_text(const Effect& e) {
    char text[16];
    (void)std::snprintf(text, sizeof text, "%.2f", e.delta);
    return text;
  }

  void tell() {
    tell_step();
    tell_bandwidths();
    tell_algorithms();
    tell_faults();
    tell_versions();
    tell_shapes();
    std::stable_sort(out_.changes.begin(), out_.changes.end(),
                     [](const Insight& a, const Insight& b) { return a.weight > b.weight; });
  }

  void tell_step() {
    const Effect& e = out_.step;
    if (!e.changed(options_.least_change)) return;
    add(e.ratio > 1 ? Insight::Weight::kFault : Insight::Weight::kNotice, "step_time",
        std::string("Steps take ") + (e.ratio > 1 ? "longer" : "less time") + ": " +
            percent(e.ratio) + " of A, " + format_duration(e.a) + " before, " +
            format_duration(e.b) + " now.",
        "99.9 %: " + percent(e.low) + " to " + percent(e.high) + ".");
  }

  void tell_bandwidths() {
    std::size_t told = 0;
    std::size_t more = 0;
    for (const ComparedShape& shape : out_.shapes) {
      const bool transfer = shape.transfer.changed(options_.least_change);
      const bool user = shape.user.changed(options_.least_change);
      if (!transfer && !user) continue;
      if (++told > kMostTold) {
        ++more;
        continue;
      }
      const Effect& effect = transfer ? shape.transfer : shape.user;
      const bool slower = effect.ratio < 1;
      if (transfer)
        add(slower ? Insight::Weight::kFault : Insight::Weight::kNotice,
            slower ? "transfer_slower" : "transfer_faster",
            shape.name() + (slower ? " transfers slower: " : " transfers faster: ") +
                effect_text(effect) + ".",
            "The rank that waits least in each operation is compared: not who waits, but the "
            "transfer "
            "itself.");
      else
        add(slower ? Insight::Weight::kFault : Insight::Weight::kNotice,
            slower ? "waits_more" : "waits_less",
            shape.name() + (slower ? ": ranks wait more: " : ": ranks wait less: ") +
                effect_text(effect) + ".",
            shape.transfer.known()
                ? "The rank that waits least is as fast as before: it is who comes "
                  "late that changed, not the network."
                : "Whether it is waiting or the transfer is not known: not all ranks "
                  "tell of these operations.");
    }
    if (more > 0)
      add(Insight::Weight::kNotice, "bandwidths",
          "The bandwidth of " + std::to_string(more) + " more shapes changed; the table has all.");
  }

  void tell_algorithms() {
    std::size_t told = 0;
    for (const ComparedShape& shape : out_.shapes) {
      if (!shape.algorithms_changed || ++told > kMostTold) continue;
      add(Insight::Weight::kNotice, "algorithm",
          "NCCL chose otherwise for " + shape.name() + ": " + shape.algorithms_a + " before, " +
              shape.algorithms_b + " now.");
    }
    if (told > kMostTold)
      add(Insight::Weight::kNotice, "algorithm",
          "NCCL chose otherwise for " + std::to_string(told - kMostTold) + " more shapes.");
  }

  /// Without the times, which differ in any case.
  static std::string timeless(const Insight& insight) {
    for (const char* word : {", since ", ", from ", ", all the time"}) {
      const std::size_t at = insight.text.find(word);
      if (at != std::string::npos) return insight.text.substr(0, at);
    }
    return insight.text;
  }

  void tell_faults() {
    const auto faults = [](const ComparedSide& side) {
      std::map<std::string, const Insight*> out;
      for (const Insight& insight : side.insights) {
        if (insight.weight == Insight::Weight::kFault) out.emplace(timeless(insight), &insight);
      }
      return out;
    };
    const auto before = faults(out_.a);
    const auto now = faults(out_.b);
    for (const auto& [text, insight] : now) {
      if (!before.contains(text))
        add(Insight::Weight::kFault, insight->kind.c_str(), "Only in B: " + insight->text,
            insight->detail);
    }
    for (const auto& [text, insight] : before) {
      if (!now.contains(text))
        add(Insight::Weight::kNotice, insight->kind.c_str(), "Only in A: " + insight->text,
            insight->detail);
    }
  }

  void tell_versions() {
    const auto compare = [&](const char* what, const char* kind, const std::vector<std::string>& a,
                             const std::vector<std::string>& b) {
      if (a == b || a.empty() || b.empty()) return;
      const auto list = [](const std::vector<std::string>& items) {
        std::string out;
        for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
        return out;
      };
      add(Insight::Weight::kNotice, kind,
          std::string("Another ") + what + ": " + list(a) + " before, " + list(b) + " now.");
    };
    compare("NCCL", "nccl_version", out_.a.head.nccl_versions, out_.b.head.nccl_versions);
    compare("plugin", "plugin_version", out_.a.head.plugin_versions, out_.b.head.plugin_versions);
  }

  void tell_shapes() {
    std::size_t told = 0;
    for (const ComparedShape& shape : out_.shapes) {
      const bool only_a = shape.operations_b == 0 && shape.share_a >= options_.least_share;
      const bool only_b = shape.operations_a == 0 && shape.share_b >= options_.least_share;
      if ((!only_a && !only_b) || ++told > kMostTold) continue;
      add(Insight::Weight::kNotice, "shape",
          shape.name() + (only_a ? " is in A only: " : " is in B only: ") +
              percent(only_a ? shape.share_a : shape.share_b) + " of its time in communication.");
    }
    if (told > kMostTold)
      add(Insight::Weight::kNotice, "shape",
          std::to_string(told - kMostTold) + " more shapes are in one run only.");
  }

  Connection& connection_;
  const CompareOptions& options_;
  Comparison& out_;
  bool with_dimension_ = false;
  std::string shape_;
  std::map<ShapeKey, std::size_t> numbers_;  // of compared_shapes
  std::vector<Found> shapes_;                // by number
};

Json effect_json(const Effect& e) {
  if (e.blocks_a == 0 || e.blocks_b == 0) return nullptr;
  return {{"a", e.a},
          {"b", e.b},
          {"ratio", e.ratio},
          {"low_999", e.low},
          {"high_999", e.high},
          {"cliffs_delta", e.delta},
          {"blocks_a", e.blocks_a},
          {"blocks_b", e.blocks_b}};
}

std::string verdict_of(const ComparedShape& shape, double least) {
  if (shape.operations_a == 0) return "only in B";
  if (shape.operations_b == 0) return "only in A";
  if (shape.transfer.changed(least)) return shape.transfer.ratio < 1 ? "slower" : "faster";
  if (shape.user.changed(least)) return shape.user.ratio < 1 ? "waits more" : "waits less";
  if (!shape.user.known()) return "too few to say";
  // Off, and so uneven within a run that it may be chance.
  if (std::fabs(shape.user.ratio - 1) >= least) return "unsure";
  return "same";
}

PictureTable shapes_table(const Comparison& comparison) {
  PictureTable table{"Shapes in both runs; those with most time first",
                     {{"Collective"},
                      {"Size", Unit::kBytes},
                      {"Ranks", Unit::kCount},
                      {"Nodes", Unit::kCount},
                      {"Dimension"},
                      {"Operations A", Unit::kCount},
                      {"Operations B", Unit::kCount},
                      {"Bus bandwidth A", Unit::kBandwidth},
                      {"Bus bandwidth B", Unit::kBandwidth},
                      {"B / A", Unit::kShare},
                      {"99.9 % from", Unit::kShare},
                      {"to", Unit::kShare},
                      {"Transfer B / A", Unit::kShare},
                      {"Cliff's delta", Unit::kNumber},
                      {"Algorithms A"},
                      {"Algorithms B"},
                      {"Verdict"}},
                     {}};
  const auto known = [](const Effect& e, double value) {
    return e.blocks_a > 0 && e.blocks_b > 0 ? nlohmann::json(value) : nlohmann::json();
  };
  for (const ComparedShape& s : comparison.shapes) {
    table.rows.push_back({s.collective, s.bytes, s.ranks, s.nodes, s.dimension, s.operations_a,
                          s.operations_b, known(s.user, s.user.a), known(s.user, s.user.b),
                          known(s.user, s.user.ratio), known(s.user, s.user.low),
                          known(s.user, s.user.high), known(s.transfer, s.transfer.ratio),
                          known(s.user, s.user.delta), s.algorithms_a, s.algorithms_b,
                          verdict_of(s, comparison.options.least_change)});
  }
  return table;
}

Picture ratio_picture(const Comparison& comparison) {
  Picture picture;
  picture.name = "compare-ratio";
  picture.section = "Comparison";
  picture.title = "Bus bandwidth of B as a share of A, by message size";
  picture.text =
      "100 % is no change. Bars: the interval that holds the true ratio with 99.9 %. Shapes "
      "of which there are too few operations are left out.";
  Json& option = picture.option;
  option["animation"] = false;
  option["legend"] = {{"type", "scroll"}, {"top", 0}};
  option["grid"] = {{"left", 95}, {"right", 30}, {"top", 45}, {"bottom", 55}};
  option["tooltip"] = {{"trigger", "item"}, {"formatter", "@point"}};
  option["xAxis"] = {
      {"type", "log"},          {"logBase", 2},
      {"name", "message size"}, {"nameLocation", "middle"},
      {"nameGap", 30},          {"axisLabel", {{"formatter", "@bytes"}, {"hideOverlap", true}}}};
  option["yAxis"] = {{"type", "value"}, {"scale", true},
                     {"name", "B / A"}, {"nameLocation", "middle"},
                     {"nameGap", 70},   {"axisLabel", {{"formatter", "@share"}}}};
  option["series"] = Json::array();
  picture.table = {
      "Ratio of each shape",
      {{"Shape"}, {"B / A", Unit::kShare}, {"99.9 % from", Unit::kShare}, {"to", Unit::kShare}},
      {}};
  std::map<std::string, std::pair<Json, Json>> points;
  for (const ComparedShape& s : comparison.shapes) {
    if (!s.user.known()) continue;
    auto& [dots, bars] = points[s.collective];
    dots.push_back({s.bytes, s.user.ratio});
    // Lines of two points, kept apart by a gap.
    bars.push_back({s.bytes, s.user.low});
    bars.push_back({s.bytes, s.user.high});
    bars.push_back({s.bytes, "-"});
    picture.table.rows.push_back({s.name(), s.user.ratio, s.user.low, s.user.high});
  }
  for (auto& [collective, of] : points) {
    option["series"].push_back({{"type", "scatter"},
                                {"name", printable(collective)},
                                {"dimensions", {"message size", "B / A"}},
                                {"symbolSize", 9},
                                {"data", std::move(of.first)}});
    option["series"].push_back({{"type", "line"},
                                {"name", printable(collective)},
                                {"showSymbol", false},
                                {"connectNulls", false},
                                {"silent", true},
                                {"data", std::move(of.second)}});
  }
  if (!option["series"].empty())
    option["series"][0]["markLine"] = {{"silent", true},
                                       {"symbol", "none"},
                                       {"label", {{"show", false}}},
                                       {"data", {{{"yAxis", 1}}}}};
  return picture;
}

}  // namespace

std::string ComparedShape::name() const {
  std::string out = printable(collective) + " " + format_bytes(static_cast<std::uint64_t>(bytes));
  if (ranks > 0) out += ", " + std::to_string(ranks) + " ranks";
  if (nodes > 0) out += " on " + std::to_string(nodes) + (nodes == 1 ? " node" : " nodes");
  if (!dimension.empty()) out += " (" + printable(dimension) + ")";
  return out;
}

Comparison compare_runs(Connection& connection, const std::string& view_a,
                        const std::string& view_b, ComparedSide a, ComparedSide b,
                        const CompareOptions& options) {
  Comparison out;
  out.options = options;
  out.a = std::move(a);
  out.b = std::move(b);
  out.a.head = run_head(connection, view_a);
  out.b.head = run_head(connection, view_b);
  out.a.insights = find_insights(connection, view_a, out.a.head);
  out.b.insights = find_insights(connection, view_b, out.b.head);
  Comparer(connection, options, out).compare(view_a, view_b);
  return out;
}

std::string comparison_text(const Comparison& comparison, std::size_t rows) {
  std::string out = "A: " + comparison.a.where + "\nB: " + comparison.b.where + "\n\n";
  if (comparison.changes.empty()) out += "Nothing changed that stands out of chance.\n";
  for (const Insight& change : comparison.changes) {
    out += (change.weight == Insight::Weight::kFault ? "! " : "* ") + change.text + "\n";
    if (!change.detail.empty()) out += "    " + change.detail + "\n";
  }
  using Align = Table::Align;
  Table table({{"SHAPE"},
               {"A", Align::kRight},
               {"B", Align::kRight},
               {"B / A", Align::kRight},
               {"99.9 %", Align::kRight},
               {"TRANSFER", Align::kRight},
               {"DELTA", Align::kRight},
               {"VERDICT"}});
  for (const ComparedShape& s : comparison.shapes) {
    const bool both = s.user.blocks_a > 0 && s.user.blocks_b > 0;
    char delta[16];
    (void)std::snprintf(delta, sizeof delta, "%.2f", s.user.delta);
    table.add({s.name(), s.user.blocks_a > 0 || both ? bandwidth(s.user.a) : "-",
               both ? bandwidth(s.user.b) : "-", both ? percent(s.user.ratio) : "-",
               both ? percent(s.user.low) + " .. " + percent(s.user.high) : "-",
               s.transfer.known() ? percent(s.transfer.ratio) : "-", both ? delta : "-",
               verdict_of(s, comparison.options.least_change)});
  }
  out += "\n" + table.render(rows);
  if (table.rows() > rows)
    out += "... and " + std::to_string(table.rows() - rows) + " more (compare.json has all)\n";
  return out;
}

Json comparison_json(const Comparison& comparison) {
  Json out;
  out["comparison"] = 1;
  for (const ComparedSide* side : {&comparison.a, &comparison.b}) {
    out[side == &comparison.a ? "a" : "b"] = {{"from", side->where},
                                              {"jobs", side->head.jobs},
                                              {"first_ns", side->head.first_ns},
                                              {"last_ns", side->head.last_ns},
                                              {"operations", side->head.operations},
                                              {"nccl_versions", side->head.nccl_versions},
                                              {"plugin_versions", side->head.plugin_versions}};
  }
  out["least_change"] = comparison.options.least_change;
  out["changes"] = Json::array();
  for (const Insight& change : comparison.changes) {
    out["changes"].push_back({{"kind", change.kind},
                              {"fault", change.weight == Insight::Weight::kFault},
                              {"text", change.text},
                              {"detail", change.detail}});
  }
  out["step_seconds"] = effect_json(comparison.step);
  out["shapes"] = Json::array();
  for (const ComparedShape& s : comparison.shapes) {
    out["shapes"].push_back({{"collective", s.collective},
                             {"bytes", s.bytes},
                             {"ranks", s.ranks},
                             {"nodes", s.nodes},
                             {"dimension", s.dimension},
                             {"operations_a", s.operations_a},
                             {"operations_b", s.operations_b},
                             {"share_a", s.share_a},
                             {"share_b", s.share_b},
                             {"busbw", effect_json(s.user)},
                             {"transfer_busbw", effect_json(s.transfer)},
                             {"algorithms_a", s.algorithms_a},
                             {"algorithms_b", s.algorithms_b},
                             {"algorithms_changed", s.algorithms_changed},
                             {"verdict", verdict_of(s, comparison.options.least_change)}});
  }
  return out;
}

Page comparison_page(const Comparison& comparison) {
  Page page;
  page.heading = "Comparison of two runs";
  page.subheading = "A: " + comparison.a.where + "; B: " + comparison.b.where;
  const auto both = [&](const char* name, const std::string& a, const std::string& b) {
    if (!a.empty() || !b.empty())
      page.facts.emplace_back(name, a == b ? a : "A: " + a + "; B: " + b);
  };
  const auto list = [](const std::vector<std::string>& items) {
    std::string out;
    for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
    return out;
  };
  const RunHead& a = comparison.a.head;
  const RunHead& b = comparison.b.head;
  both("Jobs", list(a.jobs), list(b.jobs));
  both("From", utc_text(a.first_ns), utc_text(b.first_ns));
  both("To", utc_text(a.last_ns), utc_text(b.last_ns));
  both("Processes", std::to_string(a.processes), std::to_string(b.processes));
  both("Operations", std::to_string(a.operations), std::to_string(b.operations));
  both("NCCL", list(a.nccl_versions), list(b.nccl_versions));
  both("Plugin", list(a.plugin_versions), list(b.plugin_versions));
  if (comparison.step.blocks_a > 0 && comparison.step.blocks_b > 0)
    both("Step time", format_duration(comparison.step.a), format_duration(comparison.step.b));
  page.insights = comparison.changes;
  if (page.insights.empty())
    page.insights.push_back({Insight::Weight::kInformation, "nothing",
                             "Nothing changed that stands out of chance.", "", 0, 0});
  page.sections.push_back(
      {"Shapes",
       "Operations of the same collective, size, number of ranks and nodes, and dimension of "
       "parallelism. Each run is cut into 20 blocks of time; a block's bandwidth is its bus bytes "
       "divided by its time. The ratio is that of the blocks' medians; its interval comes from "
       "their "
       "median absolute deviation and Student's t. A change counts if the ratio is off by 3 % or "
       "more, "
       "the interval does not hold 100 %, and Cliff's delta is 0.474 or more. Transfer is the rank "
       "that "
       "waits least in each operation.",
       {shapes_table(comparison)}});
  page.pictures.push_back(ratio_picture(comparison));
  return page;
}

}  // namespace ncclscope::cli::report
