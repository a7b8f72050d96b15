// SPDX-License-Identifier: Apache-2.0
#include "cli/report/output.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/report/schema.h"
#include "cli/report/statistics.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> table_names() {
  std::vector<std::string> names{"communicators"};
  for (const Grouping& grouping : groupings()) names.emplace_back(grouping.table);
  return names;
}

/// Tables were made in the order of their keys, and DuckDB may return them in another.
std::string in_order(const std::string& table) {
  for (const Grouping& grouping : groupings()) {
    if (table != grouping.table) continue;
    std::string keys;
    for (const char* key : grouping.keys) keys += (keys.empty() ? "" : ", ") + std::string(key);
    return "SELECT * FROM " + table + " ORDER BY " + keys;
  }
  return "SELECT * FROM " + table + " ORDER BY job, communicator";
}

std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The shortest text that gives the same number again.
template <typename T>
void append_number(std::string& text, T value) {
  std::array<char, 32> digits;
  text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
}

/// As JSON. There are tens of thousands of numbers, and few texts.
void append_value(std::string& text, const Rows& rows, std::size_t column, std::size_t row) {
  if (rows.is_null(column, row)) {
    text += "null";
    return;
  }
  switch (rows.type(column)) {
    case duckdb_api::kVarchar:
      text += json_text(std::string(rows.text(column, row)));
      return;
    case duckdb_api::kDouble:
      if (const double value = rows.number(column, row); std::isfinite(value))
        append_number(text, value);
      else
        text += "null";
      return;
    default:
      append_number(text, rows.integer(column, row));
  }
}

void write_rows(Connection& connection, const std::string& table, std::ofstream& file) {
  file << ",\n\"" << table << "\": [";
  Rows rows = connection.query(in_order(table));
  std::vector<std::string> keys;
  for (std::size_t column = 0; column < rows.columns(); ++column)
    keys.push_back((column == 0 ? "" : ",") + json_text(rows.column_name(column)) + ":");
  const char* separator = "\n{";
  std::string object;
  while (rows.next_chunk()) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      object = separator;
      for (std::size_t column = 0; column < keys.size(); ++column) {
        object += keys[column];
        append_value(object, rows, column, row);
      }
      file << object << '}';
      separator = ",\n{";
    }
  }
  file << "\n]";
}

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

std::int64_t rows_of(Connection& connection, const std::string& table) {
  Rows rows = connection.query("SELECT count(*) FROM " + table);
  return rows.next_chunk() ? rows.integer(0, 0) : 0;
}

std::string communicators_text(Connection& connection, std::size_t limit) {
  // Lines of v4.0 tell of no paths: no column of dashes for them.
  const bool paths = rows_of(connection, "communicators WHERE paths_seen IS NOT NULL") > 0;
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
  Rows rows = connection.query(
      "SELECT communicator, communicator_name, job, communication_class, ranks, ranks_seen, nodes, "
      "operations, total_bytes, "
      "total_seconds, paths_seen FROM communicators ORDER BY total_seconds DESC NULLS LAST, "
      "communicator LIMIT " +
      std::to_string(limit));
  while (rows.next_chunk()) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::vector<std::string> cells{or_dash(rows.text(0, r)),
                                     or_dash(rows.text(1, r)),
                                     or_dash(rows.text(2, r)),
                                     or_dash(rows.text(3, r)),
                                     rows.is_null(4, r) ? "-" : std::to_string(rows.integer(4, r)),
                                     std::to_string(rows.integer(5, r)),
                                     rows.is_null(6, r) ? "-" : std::to_string(rows.integer(6, r)),
                                     std::to_string(rows.integer(7, r)),
                                     format_bytes(static_cast<std::uint64_t>(rows.integer(8, r))),
                                     duration(rows.number(9, r))};
      if (paths) cells.insert(cells.begin() + kPathsAt, or_dash(rows.text(10, r)));
      table.add(std::move(cells));
    }
  }
  return table.render();
}

std::string statistics_text(Connection& connection, const std::string& from,
                            const std::string& first_title, const std::string& first_column,
                            std::size_t limit) {
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
  Rows rows = connection.query(
      "SELECT " + first_column +
      ", collective, bytes, concat_ws('_', algorithm, protocol), operations, seconds_median, "
      "seconds_p99, busbw_mean, busbw_median, busbw_p5, busbw_p95, busbw_stddev FROM " +
      from + " ORDER BY total_seconds DESC NULLS LAST, 1, 2, 3, 4 LIMIT " + std::to_string(limit));
  while (rows.next_chunk()) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      table.add(
          {or_dash(rows.text(0, r)), or_dash(rows.text(1, r)),
           rows.is_null(2, r) ? "-" : format_bytes(static_cast<std::uint64_t>(rows.integer(2, r))),
           or_dash(rows.text(3, r)), std::to_string(rows.integer(4, r)),
           duration(rows.number(5, r)), duration(rows.number(6, r)), bandwidth(rows.number(7, r)),
           bandwidth(rows.number(8, r)), bandwidth(rows.number(9, r)),
           bandwidth(rows.number(10, r)), bandwidth(rows.number(11, r))});
    }
  }
  return table.render();
}

std::string heading(Connection& connection, const std::string& title, const std::string& table,
                    std::size_t limit, const std::string& file) {
  const std::int64_t rows = rows_of(connection, table);
  std::string text = "\n" + title;
  if (static_cast<std::size_t>(rows) > limit)
    text += " (the " + std::to_string(limit) + " with most time of " + std::to_string(rows) +
            "; all in " + file + ")";
  return text + "\n";
}

}  // namespace

void write_csv(Connection& connection, const std::string& output) {
  for (const std::string& table : table_names()) {
    connection.run("COPY (" + in_order(table) + ") TO " +
                   sql_literal(output + "/" + table + ".csv") + " (FORMAT csv, HEADER)");
  }
}

void write_json(Connection& connection, const std::string& output, const Inputs& inputs,
                const ReadAccount& account) {
  const std::string path = output + "/report.json";
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << "{\n\"report\": 1,\n\"version\": " << json_text(NCCLSCOPE_VERSION)
       << ",\n\"duckdb\": " << json_text(duckdb_version())
       << ",\n\"inputs\": " << json_text(inputs_json(inputs, account));
  for (const std::string& table : table_names()) write_rows(connection, table, file);
  file << "\n}\n";
  file.close();
  if (!file) throw DuckdbError(unfinished + ": cannot be written; is the disk full?");
  std::filesystem::rename(unfinished, path);
}

std::string summary_text(Connection& connection, const Inputs& inputs, const ReadAccount& account,
                         std::size_t rows) {
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
  text += "\n" + heading(connection, "Communicators", "communicators", rows, "communicators.csv") +
          communicators_text(connection, rows);
  text += heading(connection, "By class of communicator", "statistics_by_class", rows,
                  "statistics_by_class.csv") +
          statistics_text(connection, "statistics_by_class", "CLASS", "communication_class", rows);
  text += heading(connection, "By communicator", "statistics", rows, "statistics.csv") +
          statistics_text(connection, "statistics", "COMMUNICATOR",
                          "coalesce(communicator_name, communicator)", rows);
  return text;
}

}  // namespace ncclscope::cli::report
