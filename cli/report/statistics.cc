// SPDX-License-Identifier: Apache-2.0
#include "cli/report/statistics.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <span>
#include <thread>
#include <utility>

#include "cli/report/quantiles.h"

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

/// For all connections: `finest` (id, keys, description, counts) and `finest_values` (id, a value
/// of each measure, occurrences).
void reduce(Connection& connection) {
  std::string describing;
  for (const char* column : kDescribing)
    describing += std::string("any_value(") + column + ") AS " + column + ", ";
  const std::string keys = join(kFinestKeys, "");
  connection.run(
      "CREATE OR REPLACE TABLE finest AS SELECT row_number() OVER () - 1 AS id, * FROM "
      "(SELECT " +
      keys + ", " + describing +
      "count(*) AS operations, count(seconds) AS timed, CAST(sum(bytes) AS BIGINT) AS total_bytes, "
      "min(time_ns) AS first_ns, max(time_ns) AS last_ns FROM operations GROUP BY " +
      keys + ")");
  connection.run(
      "CREATE OR REPLACE TABLE finest_values AS SELECT f.id, o.seconds, o.algbw, o.busbw, "
      "count(*) AS occurrences "
      "FROM operations o JOIN finest f ON " +
      match(kFinestKeys, "o", "f") + " GROUP BY ALL");
}

/// `finest` of what was gathered while reading; ids are the places in `groups`.
void write_finest(Connection& connection, const std::vector<TalliedGroup>& groups,
                  const StringPool& pool) {
  std::string columns = "id BIGINT, job VARCHAR";
  const auto add = [&](const auto& ids, const char* type) {
    for (const ColumnId id : ids) columns += std::string(", ") + column_name(id) + " " + type;
  };
  add(kFinestTexts, "VARCHAR");
  add(kDescribingTexts, "VARCHAR");
  connection.run("CREATE OR REPLACE TABLE finest (" + columns +
                 ", rank INTEGER, ranks INTEGER, nodes INTEGER, bytes BIGINT, operations BIGINT, "
                 "timed BIGINT, total_bytes BIGINT, first_ns BIGINT, last_ns "
                 "BIGINT)");
  TableAppender appender(connection, "finest");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const TalliedGroup& group = groups[i];
    const auto texts = [&](const auto& values) {
      for (const TextId text : values)
        text == TextId::kNone ? appender.null() : appender.text(pool.text(text));
    };
    const auto integer = [&](ColumnId column, std::int64_t value) {
      (group.known & column_set(column)) == 0 ? appender.null() : appender.integer(value);
    };
    appender.integer(static_cast<std::int64_t>(i));
    appender.text(pool.text(group.job));
    texts(group.texts);
    texts(group.describing_texts);
    integer(ColumnId::kRank, group.rank);
    integer(ColumnId::kRanks, group.ranks);
    integer(ColumnId::kNodes, group.nodes);
    integer(ColumnId::kBytes, group.bytes);
    appender.integer(group.operations);
    appender.integer(group.timed);
    integer(ColumnId::kBytes, group.bytes * group.operations);
    integer(ColumnId::kTimeNs, group.first_ns);
    integer(ColumnId::kTimeNs, group.last_ns);
    appender.end_row();
  }
  appender.close();
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

/// Of one measure of a group; in the order of kStatistics, NaN for what is not defined.
struct MeasureStatistics {
  std::int64_t count = 0;  // values that are not NULL
  std::array<double, kStatistics.size()> values{};
};
using GroupStatistics = std::array<MeasureStatistics, kMeasures.size()>;

/// What DuckDB reduced the operations to.
std::vector<MeasuredValues> load_values(Connection& connection, std::size_t count) {
  std::vector<MeasuredValues> values;
  values.reserve(count);
  for_each_row(
      connection, "SELECT id, occurrences, seconds, algbw, busbw FROM finest_values",
      [&](const Rows& rows, std::size_t row) {
        values.push_back({rows.integer(0, row),
                          rows.integer(1, row),
                          {rows.number(2, row), rows.number(3, row), rows.number(4, row)}});
      });
  return values;
}

/// Statistics of groups whose values are in memory. One thread each; groups are independent.
class GroupMaker {
 public:
  GroupStatistics make(std::span<const MeasuredValues* const> rows) {
    take(rows);
    // NaN, which means NULL, has no place in an order: it goes to the end.
    const auto end = std::partition(order_.begin(), order_.end(), [](const Placed& placed) {
      return !std::isnan(placed.seconds);
    });
    std::sort(order_.begin(), end,
              [](const Placed& a, const Placed& b) { return a.seconds < b.seconds; });
    GroupStatistics out;
    for (std::size_t measure = 0; measure < out.size(); ++measure)
      out[measure] = statistics_of(measure);
    return out;
  }

 private:
  struct Placed {
    double seconds;
    std::uint32_t row;
  };

  /// What several ranks have in common becomes one.
  void take(std::span<const MeasuredValues* const> rows) {
    rows_.clear();
    if (rows.front()->group == rows.back()->group) {
      for (const MeasuredValues* row : rows) rows_.push_back(*row);
    } else {
      merged_.clear();
      for (const MeasuredValues* row : rows) merged_.add(row->measures, row->occurrences);
      merged_.for_each([&](const Measures& measures, std::int64_t occurrences) {
        rows_.push_back({0, occurrences, measures});
      });
    }
    order_.clear();
    for (const MeasuredValues& row : rows_)
      order_.push_back({row.measures[0], static_cast<std::uint32_t>(order_.size())});
  }

  MeasureStatistics statistics_of(std::size_t measure) {
    MeasureStatistics out;
    values_.clear();
    for (const Placed& placed : order_) {
      const MeasuredValues& row = rows_[placed.row];
      const double value = row.measures[measure];
      if (std::isnan(value)) continue;
      out.count += row.occurrences;
      if (!values_.empty() && values_.back().value == value)
        values_.back().count += row.occurrences;
      else
        values_.push_back({value, row.occurrences});
    }
    sort_values();
    accumulator_.begin(out.count);
    for (const Occurrences& occurrences : values_)
      accumulator_.add(occurrences.value, occurrences.count);
    out.values = accumulator_.statistics();
    return out;
  }

  /// They come in the order of the times, in which bandwidths usually fall.
  void sort_values() {
    const auto less = [](const Occurrences& a, const Occurrences& b) { return a.value < b.value; };
    if (std::is_sorted(values_.begin(), values_.end(), less)) return;
    std::reverse(values_.begin(), values_.end());
    if (!std::is_sorted(values_.begin(), values_.end(), less))
      std::sort(values_.begin(), values_.end(), less);
  }

  std::vector<MeasuredValues> rows_;
  ValueTable merged_;
  std::vector<Placed> order_;
  std::vector<Occurrences> values_;
  Accumulator accumulator_;
};

/// @param groups  of the finest group with that number
std::vector<GroupStatistics> make_in_memory(const std::vector<MeasuredValues>& values,
                                            const std::vector<std::size_t>& groups,
                                            std::size_t group_count, unsigned threads) {
  const auto group_of = [&](const MeasuredValues& row) {
    return groups[static_cast<std::size_t>(row.group)];
  };
  std::vector<std::size_t> ends(group_count + 1, 0);  // of each group's rows in `order`
  for (const MeasuredValues& row : values) ++ends[group_of(row) + 1];
  for (std::size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
  std::vector<const MeasuredValues*> order(values.size());
  std::vector<std::size_t> next(ends.begin(), ends.end() - 1);
  for (const MeasuredValues& row : values) order[next[group_of(row)]++] = &row;

  std::vector<GroupStatistics> out(group_count);
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    GroupMaker maker;
    for (std::size_t i = taken++; i < group_count; i = taken++)
      out[i] = maker.make(std::span(order).subspan(ends[i], ends[i + 1] - ends[i]));
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return out;
}

std::string made_columns(const std::string& measure) {
  std::string columns = measure + "_count BIGINT";
  for (const char* statistic : kStatistics) columns += ", " + measure + "_" + statistic + " DOUBLE";
  return columns;
}

/// What has no value is NULL.
void append_made(TableAppender& appender, const MeasureStatistics& measure) {
  appender.integer(measure.count);
  for (const double value : measure.values)
    appender.number(measure.count > 0 ? value : std::numeric_limits<double>::quiet_NaN());
}

/// Takes the values of a measure in the order of the groups and, in each, of the values, and writes
/// a row for each group when its last value has come.
class MadeWriter {
 public:
  MadeWriter(Connection& connection, const std::string& table) : appender_(connection, table) {}

  void add(std::int64_t group, std::int64_t count, double value, std::int64_t occurrences) {
    if (count_ == 0 || group != group_) {
      end_group();
      group_ = group;
      count_ = count;
      accumulator_.begin(count);
    }
    accumulator_.add(value, occurrences);
  }

  void close() {
    end_group();
    appender_.close();
  }

 private:
  void end_group() {
    if (count_ == 0) return;
    appender_.integer(group_);
    append_made(appender_, {count_, accumulator_.statistics()});
    appender_.end_row();
  }

  TableAppender appender_;
  Accumulator accumulator_;
  std::int64_t group_ = 0, count_ = 0;
};

/// The same for more values, and perhaps groups, than fit: DuckDB sorts. Returns where the rows
/// are: tables made_seconds, ... for all connections.
std::string make_sorted(Connection& connection) {
  std::string joined;
  Connection writer = connection.another();
  for (const std::string measure : kMeasures) {
    const std::string table = "made_" + measure;
    connection.run("CREATE OR REPLACE TABLE " + table + " (group_id BIGINT, " +
                   made_columns(measure) + ")");
    const std::string from = " FROM finest_values v JOIN group_of m USING (id) ";
    const std::string known = "WHERE v." + measure + " IS NOT NULL ";
    connection.run(
        "CREATE OR REPLACE TEMP TABLE counted AS SELECT m.group_id, CAST(sum(v.occurrences) AS"
        " BIGINT) AS values" +
        from + known + "GROUP BY 1");
    MadeWriter made(writer, table);
    for_each_row(connection,
                 "SELECT m.group_id, c.values, v." + measure + ", v.occurrences" + from +
                     "JOIN counted c USING (group_id) " + known + "ORDER BY 1, 3",
                 [&](const Rows& rows, std::size_t row) {
                   made.add(rows.integer(0, row), rows.integer(1, row), rows.number(2, row),
                            rows.integer(3, row));
                 });
    made.close();
    joined += " LEFT JOIN " + table + " USING (group_id)";
  }
  connection.run("DROP TABLE counted");
  return joined;
}

/// For this connection: group_of (id of the finest group, group_id) and groups (group_id, keys,
/// description, counts).
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

std::vector<std::size_t> group_of_finest(Connection& connection) {
  std::vector<std::size_t> groups;
  for_each_row(connection, "SELECT id, group_id FROM group_of",
               [&](const Rows& rows, std::size_t row) {
                 const auto id = static_cast<std::size_t>(rows.integer(0, row));
                 if (id >= groups.size()) groups.resize(id + 1);
                 groups[id] = static_cast<std::size_t>(rows.integer(1, row));
               });
  return groups;
}

/// Table `made` of this connection: a row per group. Returns how groups are joined with it.
std::string write_made(Connection& connection, const std::vector<GroupStatistics>& groups) {
  std::string columns = "group_id BIGINT";
  for (const std::string measure : kMeasures) columns += ", " + made_columns(measure);
  connection.run("CREATE OR REPLACE TEMP TABLE made (" + columns + ")");
  TableAppender appender(connection, "made");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    appender.integer(static_cast<std::int64_t>(i));
    for (const MeasureStatistics& measure : groups[i]) append_made(appender, measure);
    appender.end_row();
  }
  appender.close();
  return " JOIN made USING (group_id)";
}

/// @param joined  as make_sorted() and write_made() return
void make_result(Connection& connection, const Grouping& grouping, const std::string& joined) {
  std::string columns = join(grouping.keys, "") + ", ";
  if (!grouping.describe.empty()) columns += join(grouping.describe, "") + ", ";
  columns +=
      "operations, timed, total_bytes, first_ns, last_ns, seconds_mean * seconds_count AS "
      "total_seconds";
  for (const std::string measure : kMeasures) {
    for (const char* statistic : kStatistics) columns += ", " + measure + "_" + statistic;
  }
  connection.run("CREATE OR REPLACE TABLE " + std::string(grouping.table) + " AS SELECT " +
                 columns + " FROM groups" + joined + " ORDER BY group_id");
  connection.run("DROP TABLE groups; DROP TABLE group_of");
}

/// @param values  all there are, or null: then they are in `finest_values`
void make_table(Connection& connection, const Grouping& grouping,
                const std::vector<MeasuredValues>* values, unsigned threads) {
  const std::size_t group_count = make_groups(connection, grouping);
  make_result(connection, grouping,
              values == nullptr
                  ? make_sorted(connection)
                  : write_made(connection, make_in_memory(*values, group_of_finest(connection),
                                                          group_count, threads)));
}

/// Side by side, since most of it is DuckDB's work for a few groups, which is one thread's.
void make_tables(Database& database, const std::vector<MeasuredValues>& values, unsigned threads) {
  std::vector<std::future<void>> tables;
  for (const Grouping& grouping : groupings()) {
    tables.push_back(std::async(threads > 1 ? std::launch::async : std::launch::deferred, [&] {
      Connection connection = database.connect();
      make_table(connection, grouping, &values, threads);
    }));
  }
  for (std::future<void>& table : tables) table.get();
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

void compute_statistics(Database& database, Connection& connection,
                        const StatisticsOptions& options, std::optional<Tally::Result> tallied) {
  std::optional<std::vector<MeasuredValues>> values;
  if (tallied) {
    write_finest(connection, tallied->groups, *options.pool);
    values = std::move(tallied->values);
  } else {
    reduce(connection);
    std::uint64_t count = 0;
    for_each_row(connection, "SELECT count(*) FROM finest_values",
                 [&](const Rows& rows, std::size_t row) {
                   count = static_cast<std::uint64_t>(rows.integer(0, row));
                 });
    if (count <= options.values_in_memory) values = load_values(connection, count);
  }
  if (values) {
    make_tables(database, *values, options.threads);
  } else {
    for (const Grouping& grouping : groupings())
      make_table(connection, grouping, nullptr, options.threads);
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
  connection.run("DROP TABLE finest; DROP TABLE IF EXISTS finest_values");
  for (const std::string measure : kMeasures)
    connection.run("DROP TABLE IF EXISTS made_" + measure);
}

}  // namespace ncclscope::cli::report
