// SPDX-License-Identifier: Apache-2.0
#include "cli/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace ncclscope::cli::report {
namespace {

/// The finest groups: every table's groups are made of whole ones of these.
const std::vector<const char*> kFinestKeys{"job",       "communicator", "communication_class",
                                           "rank",      "collective",   "bytes",
                                           "algorithm", "protocol"};
const std::vector<const char*> kDescribing{
    "communicator_name", "dimension", "ranks", "nodes", "node", "gpu"};

std::string join(const std::vector<const char*>& names, const std::string& before,
                 const std::string& after = "") {
  std::string text;
  for (const char* name : names) text += (text.empty() ? "" : ", ") + before + name + after;
  return text;
}

/// Equal, NULL being a value like others.
std::string match(const std::vector<const char*>& keys, const std::string& a,
                  const std::string& b) {
  std::string text;
  for (const char* key : keys) {
    text += text.empty() ? "" : " AND ";
    text += a + "." + key + " IS NOT DISTINCT FROM " + b + "." + key;
  }
  return text;
}

/// `finest` (id, keys, description, counts) and `finest_values` (id, a value of each measure,
/// occurrences).
void reduce(Connection& connection) {
  std::string describing;
  for (const char* column : kDescribing)
    describing += std::string("any_value(") + column + ") AS " + column + ", ";
  const std::string keys = join(kFinestKeys, "");
  connection.run(
      "CREATE OR REPLACE TEMP TABLE finest AS SELECT row_number() OVER () - 1 AS id, * FROM "
      "(SELECT " +
      keys + ", " + describing +
      "count(*) AS operations, count(seconds) AS timed, CAST(sum(bytes) AS BIGINT) AS total_bytes, "
      "min(time_ns) AS first_ns, max(time_ns) AS last_ns FROM operations GROUP BY " +
      keys + ")");
  connection.run(
      "CREATE OR REPLACE TEMP TABLE finest_values AS SELECT f.id, o.seconds, o.algbw, o.busbw, "
      "count(*) AS occurrences "
      "FROM operations o JOIN finest f ON " +
      match(kFinestKeys, "o", "f") + " GROUP BY ALL");
}

/// All statistics of one group from its distinct values in ascending order.
class Accumulator {
 public:
  void begin(std::int64_t count) {
    count_ = count;
    seen_ = 0;
    mean_ = squares_ = 0;
    min_ = max_ = std::numeric_limits<double>::quiet_NaN();
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      const double position = kQuantiles[i] * static_cast<double>(count - 1);
      lower_[i] = static_cast<std::int64_t>(std::floor(position));
      fraction_[i] = position - std::floor(position);
      lower_value_[i] = upper_value_[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }

  void add(double value, std::int64_t occurrences) {
    if (seen_ == 0) min_ = value;
    max_ = value;
    const std::int64_t end = seen_ + occurrences;
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      if (lower_[i] >= seen_ && lower_[i] < end) lower_value_[i] = upper_value_[i] = value;
      if (lower_[i] + 1 >= seen_ && lower_[i] + 1 < end) upper_value_[i] = value;
    }
    // Welford's way, for `occurrences` equal values at once: no difference of large sums.
    const double weight = static_cast<double>(occurrences);
    const double before = value - mean_;
    seen_ = end;
    mean_ += before * weight / static_cast<double>(seen_);
    squares_ += weight * before * (value - mean_);
  }

  /// In the order of kStatistics; NaN for what is not defined.
  [[nodiscard]] std::array<double, kStatistics.size()> statistics() const {
    const double none = std::numeric_limits<double>::quiet_NaN();
    if (seen_ == 0) return {none, none, none, none, none, none, none, none};
    const double deviation =
        count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_ - 1)) : none;
    return {mean_, quantile(0), quantile(1), quantile(2), quantile(3), min_, max_, deviation};
  }

 private:
  static constexpr std::array<double, 4> kQuantiles{0.5, 0.05, 0.95, 0.99};

  [[nodiscard]] double quantile(std::size_t i) const {
    return lower_value_[i] + (upper_value_[i] - lower_value_[i]) * fraction_[i];
  }

  std::int64_t count_ = 0, seen_ = 0;
  double mean_ = 0, squares_ = 0, min_ = 0, max_ = 0;
  std::array<std::int64_t, kQuantiles.size()> lower_{};
  std::array<double, kQuantiles.size()> fraction_{}, lower_value_{}, upper_value_{};
};

struct Occurrences {
  double value;
  std::int64_t count;
};

/// Rows of `<measure>_made`: group, how many values, the statistics.
void append_statistics(TableAppender& appender, std::int64_t group, std::int64_t count,
                       const Accumulator& accumulator) {
  appender.integer(group);
  appender.integer(count);
  for (const double statistic : accumulator.statistics()) appender.number(statistic);
  appender.end_row();
}

/// finest_values in memory.
class Values {
 public:
  Values(Connection& connection, std::size_t count) {
    rows_.reserve(count);
    Rows rows =
        connection.query("SELECT id, occurrences, seconds, algbw, busbw FROM finest_values");
    while (rows.next_chunk()) {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        rows_.push_back({rows.integer(0, row),
                         rows.integer(1, row),
                         {rows.number(2, row), rows.number(3, row), rows.number(4, row)}});
      }
    }
  }

  /// @param groups  of the finest group with that number
  void make(Connection& second, const std::vector<std::int64_t>& groups, std::size_t group_count) {
    std::vector<std::size_t> ends(group_count + 1, 0);  // of each group's rows in `order`
    for (const Row& row : rows_)
      ++ends[static_cast<std::size_t>(groups[static_cast<std::size_t>(row.id)]) + 1];
    for (std::size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
    std::vector<const Row*> order(rows_.size());
    std::vector<std::size_t> next(ends.begin(), ends.end() - 1);
    for (const Row& row : rows_)
      order[next[static_cast<std::size_t>(groups[static_cast<std::size_t>(row.id)])]++] = &row;

    std::vector<Occurrences> values;
    Accumulator accumulator;
    for (std::size_t measure = 0; measure < kMeasures.size(); ++measure) {
      TableAppender appender(second, std::string(kMeasures[measure]) + "_made");
      for (std::size_t group = 0; group < group_count; ++group) {
        values.clear();
        std::int64_t count = 0;
        for (std::size_t i = ends[group]; i < ends[group + 1]; ++i) {
          const double value = order[i]->measures[measure];
          if (std::isnan(value)) continue;
          values.push_back({value, order[i]->occurrences});
          count += order[i]->occurrences;
        }
        if (count == 0) continue;
        std::sort(values.begin(), values.end(),
                  [](const Occurrences& a, const Occurrences& b) { return a.value < b.value; });
        accumulator.begin(count);
        for (const Occurrences& occurrences : values)
          accumulator.add(occurrences.value, occurrences.count);
        append_statistics(appender, static_cast<std::int64_t>(group), count, accumulator);
      }
      appender.close();
    }
  }

 private:
  struct Row {
    std::int64_t id;
    std::int64_t occurrences;
    std::array<double, kMeasures.size()> measures;
  };
  std::vector<Row> rows_;
};

/// The same for more values than fit: DuckDB sorts.
void make_sorted(Connection& connection, Connection& second) {
  for (const std::string measure : kMeasures) {
    std::vector<std::int64_t> counts;
    {
      Rows rows = connection.query(
          "SELECT m.group_id, CAST(sum(v.occurrences) AS BIGINT) FROM finest_values v JOIN "
          "group_of m USING (id) "
          "WHERE v." +
          measure + " IS NOT NULL GROUP BY 1");
      while (rows.next_chunk()) {
        for (std::size_t row = 0; row < rows.size(); ++row) {
          const auto group = static_cast<std::size_t>(rows.integer(0, row));
          if (group >= counts.size()) counts.resize(group + 1);
          counts[group] = rows.integer(1, row);
        }
      }
    }
    TableAppender appender(second, measure + "_made");
    Rows rows = connection.query("SELECT m.group_id, v." + measure +
                                 ", v.occurrences FROM finest_values v JOIN group_of m USING (id) "
                                 "WHERE v." +
                                 measure + " IS NOT NULL ORDER BY 1, 2");
    Accumulator accumulator;
    std::int64_t group = -1;
    const auto finish = [&] {
      if (group >= 0)
        append_statistics(appender, group, counts[static_cast<std::size_t>(group)], accumulator);
    };
    while (rows.next_chunk()) {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (const std::int64_t id = rows.integer(0, row); id != group) {
          finish();
          group = id;
          accumulator.begin(counts[static_cast<std::size_t>(group)]);
        }
        accumulator.add(rows.number(1, row), rows.integer(2, row));
      }
    }
    finish();
    appender.close();
  }
}

/// group_of (id of the finest group, group_id) and groups (group_id, keys, description, counts).
std::size_t make_groups(Connection& connection, const Grouping& grouping) {
  const std::string keys = join(grouping.keys, "");
  std::string describing;
  for (const char* column : grouping.describe)
    describing += std::string("any_value(") + column + ") AS " + column + ", ";
  connection.run(
      "CREATE OR REPLACE TEMP TABLE groups AS SELECT row_number() OVER (ORDER BY " + keys +
      ") - 1 AS group_id, * FROM (SELECT " + keys + ", " + describing +
      "CAST(sum(operations) AS BIGINT) AS operations, CAST(sum(timed) AS BIGINT) AS timed, "
      "CAST(sum(total_bytes) AS BIGINT) AS total_bytes, min(first_ns) AS first_ns, max(last_ns) AS "
      "last_ns "
      "FROM finest GROUP BY " +
      keys + ")");
  connection.run(
      "CREATE OR REPLACE TEMP TABLE group_of AS SELECT f.id, g.group_id FROM finest f JOIN groups "
      "g ON " +
      match(grouping.keys, "f", "g"));
  Rows rows = connection.query("SELECT count(*) FROM groups");
  return rows.next_chunk() ? static_cast<std::size_t>(rows.integer(0, 0)) : 0;
}

std::vector<std::int64_t> group_of_finest(Connection& connection) {
  std::vector<std::int64_t> groups;
  Rows rows = connection.query("SELECT id, group_id FROM group_of");
  while (rows.next_chunk()) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const auto id = static_cast<std::size_t>(rows.integer(0, row));
      if (id >= groups.size()) groups.resize(id + 1);
      groups[id] = rows.integer(1, row);
    }
  }
  return groups;
}

/// The tables that append_statistics() fills; not temporary, for the second connection writes them.
void make_empty_tables(Connection& second) {
  for (const std::string measure : kMeasures) {
    std::string columns = "group_id BIGINT, " + measure + "_count BIGINT";
    for (const char* statistic : kStatistics)
      columns += ", " + measure + "_" + statistic + " DOUBLE";
    second.run("CREATE OR REPLACE TABLE " + measure + "_made (" + columns + ")");
  }
}

void make_table(Connection& connection, const Grouping& grouping) {
  std::string columns = join(grouping.keys, "") + ", ";
  if (!grouping.describe.empty()) columns += join(grouping.describe, "") + ", ";
  columns +=
      "operations, timed, total_bytes, first_ns, last_ns, seconds_mean * seconds_count AS "
      "total_seconds";
  std::string from = " FROM groups";
  for (const std::string measure : kMeasures) {
    for (const char* statistic : kStatistics) columns += ", " + measure + "_" + statistic;
    from += " LEFT JOIN " + measure + "_made USING (group_id)";
  }
  connection.run("CREATE OR REPLACE TABLE " + std::string(grouping.table) + " AS SELECT " +
                 columns + from + " ORDER BY group_id");
}

}  // namespace

const std::vector<Grouping>& groupings() {
  static const std::vector<Grouping> kGroupings{
      {"statistics",
       {"job", "communicator", "collective", "bytes", "algorithm", "protocol",
        "communication_class"},
       {"communicator_name", "dimension", "ranks", "nodes"}},
      {"statistics_by_rank",
       {"job", "communicator", "collective", "bytes", "algorithm", "protocol", "rank"},
       {"communicator_name", "dimension", "ranks", "nodes", "communication_class", "node", "gpu"}},
      {"statistics_by_class",
       {"job", "communication_class", "collective", "bytes", "algorithm", "protocol"},
       {}},
  };
  return kGroupings;
}

void compute_statistics(Connection& connection, Connection& second,
                        std::uint64_t values_in_memory) {
  reduce(connection);
  std::uint64_t count = 0;
  {
    Rows rows = connection.query("SELECT count(*) FROM finest_values");
    if (rows.next_chunk()) count = static_cast<std::uint64_t>(rows.integer(0, 0));
  }
  std::optional<Values> values;
  if (count <= values_in_memory) values.emplace(connection, count);
  for (const Grouping& grouping : groupings()) {
    const std::size_t group_count = make_groups(connection, grouping);
    make_empty_tables(second);
    if (values)
      values->make(second, group_of_finest(connection), group_count);
    else
      make_sorted(connection, second);
    make_table(connection, grouping);
  }
  connection.run(
      "CREATE OR REPLACE TABLE communicators AS SELECT job, communicator, "
      "any_value(communicator_name) AS communicator_name, "
      "any_value(dimension) AS dimension, max(ranks) AS ranks, max(nodes) AS nodes, "
      "any_value(communication_class) AS communication_class, count(DISTINCT rank) AS ranks_seen, "
      "count(DISTINCT node) AS nodes_seen, CAST(sum(operations) AS BIGINT) AS operations, "
      "CAST(sum(total_bytes) AS BIGINT) AS total_bytes, sum(total_seconds) AS total_seconds, "
      "min(first_ns) AS first_ns, "
      "max(last_ns) AS last_ns FROM statistics_by_rank GROUP BY job, communicator ORDER BY job, "
      "communicator");
  for (const std::string measure : kMeasures) second.run("DROP TABLE " + measure + "_made");
  connection.run(
      "DROP TABLE finest; DROP TABLE finest_values; DROP TABLE groups; DROP TABLE group_of");
}

}  // namespace ncclscope::cli::report
