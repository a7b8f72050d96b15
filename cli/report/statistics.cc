// SPDX-License-Identifier: Apache-2.0
#include "cli/report/statistics.h"

#include <cmath>
#include <limits>

namespace ncclscope::cli::report {
namespace {

struct Quantile {
  const char* name;
  double p;
};
constexpr std::array<Quantile, 4> kQuantiles{
    {{"p5", 0.05}, {"median", 0.5}, {"p95", 0.95}, {"p99", 0.99}}};

std::string join(const std::vector<const char*>& names, const std::string& before,
                 const std::string& separator = ", ") {
  std::string text;
  for (const char* name : names) text += (text.empty() ? "" : separator) + before + name;
  return text;
}

/// What needs no order: one pass, a row of sums per group.
std::string simple_aggregates(const Grouping& grouping) {
  std::string sql;
  for (const char* column : grouping.describe)
    sql += std::string("any_value(") + column + ") AS " + column + ", ";
  sql +=
      "count(*) AS operations, count(seconds) AS timed, CAST(sum(bytes) AS BIGINT) AS total_bytes, "
      "min(time_ns) AS first_ns, max(time_ns) AS last_ns, sum(seconds) AS total_seconds";
  for (const std::string measure : kMeasures) {
    sql += ", avg(" + measure + ") AS " + measure + "_mean, min(" + measure + ") AS " + measure +
           "_min, max(" + measure + ") AS " + measure + "_max, stddev_samp(" + measure + ") AS " +
           measure + "_stddev";
  }
  return sql;
}

/// The columns of every table behind its keys, in their final order.
std::string final_columns(const Grouping& grouping) {
  std::string sql = join(grouping.keys, "") + ", ";
  if (!grouping.describe.empty()) sql += join(grouping.describe, "") + ", ";
  sql += "operations, timed, total_bytes, first_ns, last_ns, total_seconds";
  for (const std::string measure : kMeasures) {
    for (const char* statistic : kStatistics) sql += ", " + measure + "_" + statistic;
  }
  return sql;
}

std::string order(const Grouping& grouping) {
  return " ORDER BY " + join(grouping.keys, "");
}

void in_memory(Connection& connection, const Grouping& grouping) {
  std::string lists, picks;
  for (const std::string measure : kMeasures) {
    lists += ", quantile_cont(" + measure + ", [";
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      lists += (i == 0 ? "" : ", ") + std::to_string(kQuantiles[i].p);
      picks += ", " + measure + "_quantiles[" + std::to_string(i + 1) + "] AS " + measure + "_" +
               kQuantiles[i].name;
    }
    lists += "]) AS " + measure + "_quantiles";
  }
  const std::string keys = join(grouping.keys, "");
  connection.run("CREATE OR REPLACE TABLE " + std::string(grouping.table) + " AS SELECT " +
                 final_columns(grouping) + " FROM (SELECT *" + picks + " FROM (SELECT " + keys +
                 ", " + simple_aggregates(grouping) + lists + " FROM operations GROUP BY " + keys +
                 "))" + order(grouping));
}

/// The value at p of `count` sorted values, from the two neighbours: what numpy calls linear.
struct Pick {
  std::uint64_t lower;
  double fraction;
};
Pick pick(double p, std::uint64_t count) {
  const double position = p * static_cast<double>(count - 1);
  const double lower = std::floor(position);
  return {static_cast<std::uint64_t>(lower), position - lower};
}

/// Takes the sorted values of one group after the other.
class QuantilePicker {
 public:
  void begin(std::uint64_t count) {
    seen_ = 0;
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      picks_[i] = pick(kQuantiles[i].p, count);
      lower_[i] = upper_[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  void add(double value) {
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      if (seen_ == picks_[i].lower) lower_[i] = upper_[i] = value;
      if (seen_ == picks_[i].lower + 1) upper_[i] = value;
    }
    ++seen_;
  }
  [[nodiscard]] double value(std::size_t i) const {
    return lower_[i] + (upper_[i] - lower_[i]) * picks_[i].fraction;
  }

 private:
  std::uint64_t seen_ = 0;
  std::array<Pick, kQuantiles.size()> picks_{};
  std::array<double, kQuantiles.size()> lower_{}, upper_{};
};

/// INSERTs in batches.
class Inserter {
 public:
  Inserter(Connection& connection, std::string table)
      : connection_(connection), table_(std::move(table)) {}

  void add(std::int64_t group, const QuantilePicker& picker) {
    sql_ += (rows_ == 0 ? "(" : ", (") + std::to_string(group);
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) sql_ += ", " + literal(picker.value(i));
    sql_ += ")";
    if (++rows_ == kBatch) flush();
  }
  void flush() {
    if (rows_ > 0) connection_.run("INSERT INTO " + table_ + " VALUES " + sql_);
    sql_.clear();
    rows_ = 0;
  }

 private:
  static constexpr int kBatch = 500;
  static std::string literal(double value) {
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%.17g", value);
    return std::string(text.data()) + "::DOUBLE";
  }

  Connection& connection_;
  std::string table_;
  std::string sql_;
  int rows_ = 0;
};

void sorted(Connection& connection, Connection& second, const Grouping& grouping) {
  const std::string keys = join(grouping.keys, "");
  std::string counts;
  for (const std::string measure : kMeasures)
    counts += ", count(" + measure + ") AS " + measure + "_count";
  connection.run(
      "CREATE OR REPLACE TEMP TABLE groups AS SELECT row_number() OVER () AS id, * FROM (SELECT " +
      keys + ", " + simple_aggregates(grouping) + counts + " FROM operations GROUP BY " + keys +
      ")");
  std::string joins, match;
  for (const char* key : grouping.keys)
    match +=
        std::string(match.empty() ? "" : " AND ") + "g." + key + " IS NOT DISTINCT FROM o." + key;
  for (const std::string measure : kMeasures) {
    std::string columns;
    for (const Quantile& quantile : kQuantiles)
      columns += ", " + measure + "_" + quantile.name + " DOUBLE";
    const std::string table = measure + "_picked";
    // Not temporary: the second connection writes it while the first one reads.
    second.run("CREATE OR REPLACE TABLE " + table + "(id BIGINT" + columns + ")");
    joins += " LEFT JOIN " + table + " USING (id)";
    Rows rows = connection.query("SELECT g.id, g." + measure + "_count, o." + measure +
                                 " FROM operations o JOIN groups g ON " + match + " WHERE o." +
                                 measure + " IS NOT NULL ORDER BY g.id, o." + measure);
    Inserter inserter(second, table);
    QuantilePicker picker;
    std::int64_t group = -1;
    while (rows.next_chunk()) {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (const std::int64_t id = rows.integer(0, row); id != group) {
          if (group >= 0) inserter.add(group, picker);
          group = id;
          picker.begin(static_cast<std::uint64_t>(rows.integer(1, row)));
        }
        picker.add(rows.number(2, row));
      }
    }
    if (group >= 0) inserter.add(group, picker);
    inserter.flush();
  }
  connection.run("CREATE OR REPLACE TABLE " + std::string(grouping.table) + " AS SELECT " +
                 final_columns(grouping) + " FROM groups" + joins + order(grouping));
  connection.run("DROP TABLE groups");
  for (const std::string measure : kMeasures) second.run("DROP TABLE " + measure + "_picked");
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

void compute_statistics(Connection& connection, Connection& second, std::uint64_t operations,
                        std::uint64_t rows_in_memory) {
  for (const Grouping& grouping : groupings()) {
    if (operations <= rows_in_memory)
      in_memory(connection, grouping);
    else
      sorted(connection, second, grouping);
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
}

}  // namespace ncclscope::cli::report
