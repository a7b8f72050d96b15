// SPDX-License-Identifier: Apache-2.0
#include "cli/report/output.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <queue>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

using Json = nlohmann::ordered_json;

std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The shortest text that gives the same number again.
template <typename T>
void append_number(std::string& text, T value) {
  std::array<char, 32> digits;
  text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
}

/// "seconds_mean", ...
const char* made_name(std::size_t measure, std::size_t statistic) {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const std::string of : kMeasures) {
      for (const char* name : kStatistics) names.push_back(of + "_" + name);
    }
    return names;
  }();
  return kNames[measure * kStatistics.size() + statistic].c_str();
}

/// The columns of a table, one after the other: each is given to sink.text(name, text),
/// sink.integer(name, value, known) or sink.number(name, value); an empty text and NaN are NULL.
template <typename Sink>
class Columns {
 public:
  Columns(const OrderedTexts& texts, Sink& sink) : texts_(texts), sink_(sink) {}

  void give(const StatisticsRow& row, const Grouping& grouping) {
    text("job", row.group.job);
    for (const ColumnId column : grouping.keys) give(row.group, column);
    for (const ColumnId column : grouping.describe) give(row.group, column);
    sink_.integer("operations", row.group.operations, true);
    sink_.integer("timed", row.group.measured[0], true);
    sink_.integer("total_bytes", row.total_bytes(), row.group.has(ColumnId::kBytes));
    times(row.group.first_ns, row.group.last_ns, row.group.has(ColumnId::kTimeNs));
    sink_.number("total_seconds", row.total_seconds());
    for (std::size_t i = 0; i < row.measures.size(); ++i) {
      for (std::size_t k = 0; k < kStatistics.size(); ++k)
        sink_.number(made_name(i, k), row.measures[i][k]);
    }
  }

  void give(const CommunicatorRow& row) {
    text("job", row.job);
    text("communicator", row.communicator);
    text("communicator_name", row.name);
    text("dimension", row.dimension);
    sink_.integer("ranks", row.ranks, row.ranks > 0);
    sink_.integer("nodes", row.nodes, row.nodes > 0);
    text("communication_class", row.communication_class);
    sink_.integer("ranks_seen", row.ranks_seen, true);
    sink_.integer("nodes_seen", row.nodes_seen, true);
    sink_.integer("operations", row.operations, true);
    sink_.integer("total_bytes", row.total_bytes, row.total_bytes >= 0);
    sink_.number("total_seconds", row.total_seconds);
    times(row.first_ns, row.last_ns, row.has_times);
    sink_.text("paths_seen", row.paths.text());
    sink_.integer("network_ranks", row.network_ranks, row.network_ranks > 0);
    sink_.integer("network_bytes", row.network_bytes, row.network_ranks > 0);
    sink_.text("remark", remark_name(row.remark));
  }

 private:
  void text(const char* name, TextRank rank) { sink_.text(name, texts_.text(rank)); }

  void give(const StatisticsGroup& group, ColumnId column) {
    if (kColumns[static_cast<std::size_t>(column)].type == ColumnType::kText)
      text(column_name(column), group.text(column));
    else
      sink_.integer(column_name(column), group.integer(column), group.has(column));
  }

  void times(std::int64_t first_ns, std::int64_t last_ns, bool known) {
    sink_.integer("first_ns", first_ns, known);
    sink_.integer("last_ns", last_ns, known);
  }

  const OrderedTexts& texts_;
  Sink& sink_;
};

/// Members of an object.
class JsonSink {
 public:
  void text(const char* name, std::string_view value) {
    key(name);
    row_ += value.empty() ? "null" : json_text(std::string(value));
  }
  void integer(const char* name, std::int64_t value, bool known) {
    key(name);
    if (known)
      append_number(row_, value);
    else
      row_ += "null";
  }
  void number(const char* name, double value) {
    key(name);
    if (std::isfinite(value))
      append_number(row_, value);
    else
      row_ += "null";
  }

  /// All since the last time.
  std::string take() { return std::exchange(row_, {}); }

 private:
  void key(const char* name) {
    row_ += row_.empty() ? "\"" : ",\"";
    row_.append(name).append("\":");
  }

  std::string row_;
};

/// Cells of a row, or their names.
class CsvSink {
 public:
  explicit CsvSink(bool names) : names_(names) {}

  void text(const char* name, std::string_view value) {
    separate();
    quote(names_ ? name : value);
  }
  void integer(const char* name, std::int64_t value, bool known) {
    separate();
    if (names_)
      row_ += name;
    else if (known)
      append_number(row_, value);
  }
  void number(const char* name, double value) {
    separate();
    if (names_)
      row_ += name;
    else if (std::isfinite(value))
      append_number(row_, value);
  }

  /// All since the last time.
  std::string take() {
    first_ = true;
    return std::exchange(row_, {});
  }

 private:
  void separate() {
    if (!std::exchange(first_, false)) row_ += ',';
  }

  void quote(std::string_view value) {
    if (value.find_first_of(",\"\r\n") == std::string_view::npos) {
      row_ += value;
      return;
    }
    row_ += '"';
    for (const char character : value) row_.append(character == '"' ? 2 : 1, character);
    row_ += '"';
  }

  bool names_, first_ = true;
  std::string row_;
};

/// Calls visit(name of the table, its rows, give), where give(columns, row) gives a row.
template <typename Visit>
void for_each_table(const Statistics& statistics, Visit&& visit) {
  visit("communicators", statistics.communicators,
        [](auto& columns, const CommunicatorRow& row) { columns.give(row); });
  for (const StatisticsTable& table : statistics.tables) {
    visit(table.grouping->table, table.rows,
          [&](auto& columns, const StatisticsRow& row) { columns.give(row, *table.grouping); });
  }
}

double time_of(const CommunicatorRow& row) {
  return row.total_seconds;
}
double time_of(const StatisticsRow& row) {
  return row.total_seconds();
}

/// The places of the rows with most time, ascending.
template <typename Row>
std::vector<std::uint64_t> places_of_most(const Spool<Row>& rows, std::uint64_t limit) {
  std::priority_queue<std::pair<double, std::uint64_t>>
      least;  // negative times: the least is on top
  std::uint64_t place = 0;
  rows.for_each([&](const Row& row) {
    const double seconds = time_of(row);
    least.emplace(std::isnan(seconds) ? 0 : -seconds, place++);
    if (least.size() > limit) least.pop();
  });
  std::vector<std::uint64_t> places;
  for (; !least.empty(); least.pop()) places.push_back(least.top().second);
  std::sort(places.begin(), places.end());
  return places;
}

template <typename Row, typename Visit>
void for_each_of_most(const Spool<Row>& rows, std::uint64_t limit, Visit&& visit) {
  if (rows.size() <= limit) return rows.for_each(visit);
  const std::vector<std::uint64_t> places = places_of_most(rows, limit);
  auto next = places.begin();
  std::uint64_t place = 0;
  rows.for_each([&](const Row& row) {
    if (next == places.end() || *next != place++) return;
    ++next;
    visit(row);
  });
}

/// A file that is there once it is complete.
class OutputFile {
 public:
  explicit OutputFile(std::string path)
      : path_(std::move(path)), file_(unfinished(), std::ios::binary | std::ios::trunc) {}

  std::ofstream& stream() { return file_; }
  void finish() {
    file_.close();
    if (!file_) throw std::runtime_error(unfinished() + ": cannot be written; is the disk full?");
    std::filesystem::rename(unfinished(), path_);
  }

 private:
  [[nodiscard]] std::string unfinished() const { return path_ + ".new"; }

  std::string path_;
  std::ofstream file_;
};

Json inputs_json(const Inputs& inputs, const ReadAccount& account) {
  const ReadCounts counts = account.counts();
  Json json;
  json["files"] = counts.files;
  json["lines"] = counts.lines;
  json["operations"] = counts.operations;
  json["bad_lines"] = counts.bad_lines;
  json["bad_files"] = counts.bad_files;
  json["cut_files"] = counts.cut_files;
  json["lost_by_writer"] = counts.lost_by_writer;
  json["messages"] = account.messages();
  json["left_out"] = inputs.left_out;
  return json;
}

std::string count_text(std::uint64_t count) {
  return std::to_string(count);
}

std::string or_dash(std::string_view text) {
  return text.empty() ? "-" : printable(text);
}

std::string bandwidth(double bytes_per_second) {
  return std::isnan(bytes_per_second) ? "-" : format_bandwidth(bytes_per_second);
}
std::string duration(double seconds) {
  return std::isnan(seconds) ? "-" : format_duration(seconds);
}

using Align = Table::Align;

/// The rows before all others, `limit` at most, in order.
template <typename Row, typename Before>
std::vector<Row> first_rows(const Spool<Row>& rows, std::size_t limit, Before before) {
  std::vector<Row> first;  // a heap: the last of them in front
  rows.for_each([&](const Row& row) {
    if (first.size() == limit) {
      if (limit == 0 || !before(row, first.front())) return;
      std::pop_heap(first.begin(), first.end(), before);
      first.pop_back();
    }
    first.push_back(row);
    std::push_heap(first.begin(), first.end(), before);
  });
  std::sort_heap(first.begin(), first.end(), before);
  return first;
}

/// Most first, NaN last.
int compare_times(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return (std::isnan(a) ? 1 : 0) - (std::isnan(b) ? 1 : 0);
  return a > b ? -1 : a < b ? 1 : 0;
}

std::string communicators_text(const Statistics& statistics, std::size_t limit) {
  // Lines of v4.0 tell of no paths: no column of dashes for them.
  bool paths = false;
  statistics.communicators.for_each(
      [&](const CommunicatorRow& row) { paths = paths || !row.paths.text().empty(); });
  std::vector<Table::Column> columns{{"COMMUNICATOR"},
                                     {"NAME"},
                                     {"JOB"},
                                     {"CLASS"},
                                     {"RANKS", Align::kRight},
                                     {"SEEN", Align::kRight},
                                     {"NODES", Align::kRight},
                                     {"OPERATIONS", Align::kRight},
                                     {"BYTES", Align::kRight},
                                     {"TIME", Align::kRight}};
  constexpr std::ptrdiff_t kPathsAt = 4;
  if (paths) columns.insert(columns.begin() + kPathsAt, {"PATHS"});
  Table table(std::move(columns));
  const auto before = [](const CommunicatorRow& a, const CommunicatorRow& b) {
    const int time = compare_times(a.total_seconds, b.total_seconds);
    return time != 0 ? time < 0
                     : std::pair(a.communicator, a.job) < std::pair(b.communicator, b.job);
  };
  const auto text = [&](TextRank rank) { return or_dash(statistics.texts.text(rank)); };
  for (const CommunicatorRow& row : first_rows(statistics.communicators, limit, before)) {
    std::vector<std::string> cells{
        text(row.communicator),
        text(row.name),
        text(row.job),
        text(row.communication_class),
        row.ranks == 0 ? "-" : std::to_string(row.ranks),
        std::to_string(row.ranks_seen),
        row.nodes == 0 ? "-" : std::to_string(row.nodes),
        std::to_string(row.operations),
        format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(row.total_bytes, 0))),
        duration(row.total_seconds)};
    if (paths) cells.insert(cells.begin() + kPathsAt, or_dash(row.paths.text()));
    table.add(std::move(cells));
  }
  return table.render();
}

/// What stands first in a row of a table of statistics.
TextRank title_of(const StatisticsRow& row, ColumnId column) {
  const TextRank title = row.group.text(column);
  // A communicator's name, else its number.
  return column == ColumnId::kCommunicatorName && title == TextRank::kNull
             ? row.group.text(ColumnId::kCommunicator)
             : title;
}

/// "RING_SIMPLE"
std::string algorithm_text(const StatisticsRow& row, const OrderedTexts& texts) {
  std::string text;
  for (const ColumnId column : {ColumnId::kAlgorithm, ColumnId::kProtocol}) {
    const std::string& part = texts.text(row.group.text(column));
    text += (text.empty() || part.empty() ? "" : "_") + part;
  }
  return text;
}

std::string statistics_text(const StatisticsTable& from, const OrderedTexts& texts,
                            const char* first_title, ColumnId first_column, std::size_t limit) {
  Table table({{first_title},
               {"COLLECTIVE"},
               {"SIZE", Align::kRight},
               {"ALGORITHM"},
               {"COUNT", Align::kRight},
               {"MEDIAN", Align::kRight},
               {"P99", Align::kRight},
               {"BUSBW MEAN", Align::kRight},
               {"MEDIAN", Align::kRight},
               {"P5", Align::kRight},
               {"P95", Align::kRight},
               {"STDDEV", Align::kRight}});
  const auto keys = [&](const StatisticsRow& row) {
    return std::tuple(title_of(row, first_column), row.group.text(ColumnId::kCollective),
                      !row.group.has(ColumnId::kBytes), row.group.bytes,
                      row.group.text(ColumnId::kAlgorithm), row.group.text(ColumnId::kProtocol));
  };
  const auto before = [&](const StatisticsRow& a, const StatisticsRow& b) {
    const int time = compare_times(a.total_seconds(), b.total_seconds());
    return time != 0 ? time < 0 : keys(a) < keys(b);
  };
  for (const StatisticsRow& row : first_rows(from.rows, limit, before)) {
    const auto of = [&](std::size_t measure, Statistic statistic) {
      return row.measures[measure][static_cast<std::size_t>(statistic)];
    };
    constexpr std::size_t kSeconds = 0, kBusbw = 2;
    table.add({or_dash(texts.text(title_of(row, first_column))),
               or_dash(texts.text(row.group.text(ColumnId::kCollective))),
               row.group.has(ColumnId::kBytes)
                   ? format_bytes(static_cast<std::uint64_t>(row.group.bytes))
                   : "-",
               or_dash(algorithm_text(row, texts)), std::to_string(row.group.operations),
               duration(of(kSeconds, Statistic::kMedian)), duration(of(kSeconds, Statistic::kP99)),
               bandwidth(of(kBusbw, Statistic::kMean)), bandwidth(of(kBusbw, Statistic::kMedian)),
               bandwidth(of(kBusbw, Statistic::kP5)), bandwidth(of(kBusbw, Statistic::kP95)),
               bandwidth(of(kBusbw, Statistic::kStddev))});
  }
  return table.render();
}

std::string heading(const std::string& title, std::uint64_t rows, std::size_t limit,
                    const std::string& table) {
  std::string text = "\n" + title;
  if (rows > limit)
    text += " (the " + std::to_string(limit) + " with most time of " + std::to_string(rows) +
            "; all in " + table + ".csv)";
  return text + "\n";
}

}  // namespace

void write_csv(const Statistics& statistics, const std::string& output) {
  for_each_table(statistics, [&](const char* table, const auto& rows, const auto& give) {
    OutputFile file(output + "/" + table + ".csv");
    CsvSink names(true), cells(false);
    Columns name_columns(statistics.texts, names), columns(statistics.texts, cells);
    give(name_columns, {});
    file.stream() << names.take() << '\n';
    rows.for_each([&](const auto& row) {
      give(columns, row);
      file.stream() << cells.take() << '\n';
    });
    file.finish();
  });
}

void write_json(const Statistics& statistics, const std::string& output, const Inputs& inputs,
                const ReadAccount& account, std::uint64_t most_rows) {
  Json left_out = Json::object();
  for_each_table(statistics, [&](const char* table, const auto& rows, const auto&) {
    if (rows.size() > most_rows) left_out[table] = rows.size() - most_rows;
  });
  OutputFile file(output + "/report.json");
  file.stream() << "{\n\"report\": 1,\n\"version\": " << json_text(NCCLSCOPE_VERSION)
                << ",\n\"duckdb\": " << json_text(duckdb_version())
                << ",\n\"inputs\": " << json_text(inputs_json(inputs, account))
                << ",\n\"left_out_rows\": " << json_text(left_out);
  for_each_table(statistics, [&](const char* table, const auto& rows, const auto& give) {
    file.stream() << ",\n\"" << table << "\": [";
    const char* separator = "\n{";
    JsonSink members;
    Columns columns(statistics.texts, members);
    for_each_of_most(rows, most_rows, [&](const auto& row) {
      give(columns, row);
      file.stream() << separator << members.take() << '}';
      separator = ",\n{";
    });
    file.stream() << "\n]";
  });
  file.stream() << "\n}\n";
  file.finish();
}

std::string summary_text(const Statistics& statistics, const Inputs& inputs,
                         const ReadAccount& account, std::size_t rows) {
  const ReadCounts counts = account.counts();
  std::string text =
      count_text(counts.operations) + " operations from " + count_text(counts.files) + " files";
  if (counts.cut_files > 0)
    text += ", " + count_text(counts.cut_files) + " of them cut at their end";
  if (counts.bad_files > 0) text += ", " + count_text(counts.bad_files) + " not read to their end";
  if (counts.bad_lines > 0) text += ", " + count_text(counts.bad_lines) + " bad lines left out";
  if (counts.lost_by_writer > 0)
    text += ", " + count_text(counts.lost_by_writer) + " operations lost by their writer";
  if (!inputs.left_out.empty())
    text += ", " + std::to_string(inputs.left_out.size()) + " other files left out";
  text += "\n" + heading("Communicators", statistics.communicators.size(), rows, "communicators") +
          communicators_text(statistics, rows);
  const auto add = [&](const char* title, TableId table, const char* first_title,
                       ColumnId first_column) {
    const StatisticsTable& from = statistics.table(table);
    text += heading(title, from.rows.size(), rows, from.grouping->table) +
            statistics_text(from, statistics.texts, first_title, first_column, rows);
  };
  add("By class of communicator", TableId::kByClass, "CLASS", ColumnId::kCommunicationClass);
  add("By communicator", TableId::kByCommunicator, "COMMUNICATOR", ColumnId::kCommunicatorName);
  return text;
}

}  // namespace ncclscope::cli::report
