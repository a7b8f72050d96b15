// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <memory>
#include <span>
#include <thread>

#include "cli/commands.h"
#include "cli/report/compare.h"
#include "cli/report/draw.h"
#include "cli/report/flight_operations.h"
#include "cli/report/inputs.h"
#include "cli/report/output.h"
#include "cli/report/progress.h"
#include "cli/report/reading.h"
#include "cli/report/schema.h"
#include "cli/report/statistics.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

namespace fs = std::filesystem;

/// As Hive writes folder names: what is not plain becomes %XX.
std::string folder_name(const std::string& value) {
  std::string name;
  for (const char character : value) {
    const auto byte = static_cast<unsigned char>(character);
    if (std::isalnum(byte) != 0 || character == '.' || character == '_' || character == '-') {
      name += character;
      continue;
    }
    constexpr const char* kDigits = "0123456789ABCDEF";
    name += '%';
    name += kDigits[byte >> 4U];
    name += kDigits[byte & 0xFU];
  }
  return name;
}

/// A folder for DuckDB to spill to, gone at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// An empty folder, or one whose last report may be replaced.
void prepare_output(const ReportOptions& options) {
  if (fs::exists(options.output) && !fs::is_directory(options.output))
    throw InputError(options.output.string() + ": is a file; --output names a folder");
  if (fs::exists(options.output) && !fs::is_empty(options.output)) {
    if (!options.overwrite)
      throw InputError(options.output.string() +
                       ": is not empty; --overwrite replaces the report in it");
    fs::remove_all(options.output / kOperationsFolder);
    for (const char* file :
         {"report.json", "report.html", "insights.json", "steps.json", "compare.json"})
      fs::remove(options.output / file);
    for (const char* folder : {"svg", "a", "b"}) fs::remove_all(options.output / folder);
  }
  fs::create_directories(options.output / kOperationsFolder);
}

std::string bytes_done(const ReadAccount& account, std::uint64_t total) {
  return format_bytes(account.bytes()) + " of " + format_bytes(total);
}

/// The columns that these inputs seem to have: columns of nothing but NULL cost as much as others.
ColumnSet expected_columns(const std::vector<Input>& inputs) {
  ColumnSet columns = kInspectorColumns;
  for (const Input& input : inputs) {
    if (input.kind == InputKind::kArchive) return kAllColumns;
    if (input.traces) columns |= kTraceColumns;
    if (!input.step.empty()) columns |= column_set(ColumnId::kStep);
  }
  return columns;
}

/// One COPY per job: its files become operations/job=<id>/*.parquet. Returns the columns that there
/// were besides `columns`.
ColumnSet write_operations(Connection& connection, const ReportOptions& options,
                           const Inputs& inputs, unsigned threads, ColumnSet columns,
                           StringPool& pool, ReadAccount& account) {
  const std::span<const Input> files = inputs.files;
  std::atomic<ColumnSet> lost{0};
  std::size_t begin = 0;
  while (begin < files.size() && lost == 0) {
    std::size_t end = begin;
    while (end < files.size() && files[end].job == files[begin].job) ++end;
    InputSource source(files.subspan(begin, end - begin), pool, account);
    const std::string function =
        "read_inputs_" + std::to_string(begin) + "_" + std::to_string(columns);
    register_operations(connection, function, source, threads, columns, lost);
    const fs::path folder = options.output / kOperationsFolder /
                            (std::string(kJobColumn) + "=" + folder_name(files[begin].job));
    fs::create_directories(folder);
    connection.run(
        "COPY (SELECT * FROM " + function + "()) TO " + sql_literal(folder.string()) +
        " (FORMAT parquet, COMPRESSION zstd, PER_THREAD_OUTPUT true, OVERWRITE_OR_IGNORE true)");
    begin = end;
  }
  return lost;
}

/// Dumps become operations/job=<id>/flight_*.parquet.
void write_flight(Connection& connection, const ReportOptions& options, unsigned threads,
                  StringPool& pool) {
  if (options.flight_recorder.empty()) return;
  FlightSource source(read_flight_dumps(options.flight_recorder), pool);
  std::atomic<ColumnSet> lost{0};
  register_operations(connection, "read_flight", source, threads, kAllColumns, lost);
  const fs::path folder =
      options.output / kOperationsFolder /
      (std::string(kJobColumn) + "=" + folder_name(options.job.empty() ? "unknown" : options.job));
  fs::create_directories(folder);
  connection.run("COPY (SELECT * FROM read_flight()) TO " + sql_literal(folder.string()) +
                 " (FORMAT parquet, COMPRESSION zstd, PER_THREAD_OUTPUT true, OVERWRITE_OR_IGNORE "
                 "true, FILENAME_PATTERN 'flight_{i}')");
}

/// A value of the statistics takes 40 bytes in memory, and up to 24 while it is sorted.
std::uint64_t values_in_memory(std::uint64_t memory_bytes) {
  return memory_bytes / 4 / 64;
}

void tell_damage(const ReadAccount& account, const Inputs& inputs) {
  const ReadCounts counts = account.counts();
  for (const std::string& reason : inputs.left_out)
    std::fprintf(stderr, "left out: %s\n", printable(reason).c_str());
  for (const std::string& message : account.messages())
    std::fprintf(stderr, "%s\n", printable(message).c_str());
  const std::uint64_t all = counts.bad_lines + counts.bad_files + counts.cut_files;
  if (all > ReadAccount::kMessages)
    std::fprintf(stderr, "... %llu more\n",
                 static_cast<unsigned long long>(all - ReadAccount::kMessages));
}

/// Without the drawing library there is a report all the same.
Drawn draw(Connection& connection, const ReportOptions& options) {
  try {
    return draw_report(connection, options.output, options.pictures, options.throughput);
  } catch (const AssetError& error) {
    std::fprintf(stderr, "no pictures: %s\n", error.what());
    return draw_report(connection, options.output, false, options.throughput);
  }
}

/// Makes `view` of what is at `path`: the folder of a report, or inputs, which are written to
/// OUTPUT/<view>/operations first.
void open_side(Connection& connection, const ReportOptions& options, const std::string& path,
               const std::string& view, unsigned threads, StringPool& pool) {
  if (fs::is_directory(fs::path(path) / kOperationsFolder)) {
    connection.run(operations_view(path, view));
    return;
  }
  ReportOptions side = options;
  side.paths = {path};
  side.output = options.output / view;
  const Inputs inputs = find_inputs(side.paths, side.job);
  fs::create_directories(side.output / kOperationsFolder);
  ReadAccount account;
  (void)write_operations(connection, side, inputs, threads, kAllColumns, pool, account);
  tell_damage(account, inputs);
  if (account.counts().operations == 0) throw InputError(path + ": no operation in it");
  connection.run(operations_view(side.output, view));
}

unsigned threads_of(const ReportOptions& options) {
  return options.threads != 0 ? options.threads
                              : std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
}

int run_comparison(const ReportOptions& options) {
  prepare_output(options);
  const ScratchFolder scratch(options.output / ".scratch");
  const unsigned threads = threads_of(options);
  Database database({.memory_bytes = options.memory_mb * 1000 * 1000 / 2,
                     .threads = threads,
                     .temporary_folder = scratch.path()});
  Connection connection = database.connect();
  Progress progress(!options.quiet);
  StringPool pool;
  progress.step("reading A");
  open_side(connection, options, options.compare[0], "a", threads, pool);
  progress.step("reading B");
  open_side(connection, options, options.compare[1], "b", threads, pool);
  progress.step("comparing");
  CompareOptions settings;
  settings.least_change = options.least_change;
  const Comparison comparison =
      compare_runs(connection, "a", "b", {"A", printable(options.compare[0]), {}, {}},
                   {"B", printable(options.compare[1]), {}, {}}, settings);
  write_json_file(options.output / "compare.json", comparison_json(comparison));
  std::string page;
  if (options.pictures) {
    try {
      page = write_page(comparison_page(comparison), options.output).html;
    } catch (const AssetError& error) {
      std::fprintf(stderr, "no pictures: %s\n", error.what());
    }
  }
  progress.done();
  if (!options.quiet)
    std::fputs(comparison_text(comparison, options.terminal_rows).c_str(), stdout);
  std::printf("%s\n", (options.output / "compare.json").c_str());
  if (!page.empty()) std::printf("%s\n", page.c_str());
  return comparison.changes.empty() ? kSuccess : kNegative;
}

}  // namespace

int run_report(const ReportOptions& options) {
  if (!options.compare.empty()) return run_comparison(options);
  const Inputs inputs = options.paths.empty() ? Inputs() : find_inputs(options.paths, options.job);
  prepare_output(options);
  const ScratchFolder scratch(options.output / ".scratch");
  const unsigned threads = threads_of(options);
  // The rest is for our readers, allocators and what DuckDB does not count.
  const std::uint64_t memory_bytes = options.memory_mb * 1000 * 1000;
  Database database(
      {.memory_bytes = memory_bytes / 2, .threads = threads, .temporary_folder = scratch.path()});
  Connection connection = database.connect();
  Connection second = database.connect();
  Progress progress(!options.quiet);

  StringPool pool;
  ReadAccount account;
  std::uint64_t total = 0;
  for (const Input& input : inputs.files) total += input.bytes;
  progress.step(
      "reading",
      [&] {
        return static_cast<double>(account.bytes()) /
               static_cast<double>(std::max<std::uint64_t>(total, 1));
      },
      [&] { return bytes_done(account, total); });
  const ColumnSet columns = expected_columns(inputs.files);
  if (write_operations(connection, options, inputs, threads, columns, pool, account) != 0) {
    account.reset();  // a column that the first lines did not show: once more, with all
    fs::remove_all(options.output / kOperationsFolder);
    fs::create_directories(options.output / kOperationsFolder);
    (void)write_operations(connection, options, inputs, threads, kAllColumns, pool, account);
  }
  write_flight(connection, options, threads, pool);
  progress.done();
  tell_damage(account, inputs);
  const ReadCounts counts = account.counts();
  if (counts.operations == 0 && options.flight_recorder.empty())
    throw InputError("no operation in any of the input files");

  progress.step("statistics", [&] { return connection.progress() / 100; });
  connection.run(operations_view(options.output));
  compute_statistics(connection, second, values_in_memory(memory_bytes));
  progress.step("writing");
  write_csv(connection, options.output);
  write_json(connection, options.output, inputs, account);
  progress.step("pictures");
  const Drawn drawn = draw(connection, options);
  progress.done();
  if (!options.quiet)
    std::fputs(summary_text(connection, inputs, account, options.terminal_rows).c_str(), stdout);
  if (!options.quiet) std::fputs(insights_text(drawn.insights).c_str(), stdout);
  std::printf("%s\n", (options.output / "report.json").c_str());
  if (!drawn.files.html.empty()) std::printf("%s\n", drawn.files.html.c_str());
  return options.strict && counts.bad_lines + counts.bad_files > 0 ? kNegative : kSuccess;
}

}  // namespace ncclscope::cli::report

namespace ncclscope::cli {
namespace {

void add_comparison(CLI::App& command, report::ReportOptions& options, CLI::Option& paths) {
  command
      .add_option(
          "--compare", options.compare,
          "Compare two runs instead, such as yesterday's (A) and today's (B): what PATH may "
          "be, or folders of reports")
      ->type_name("A B")
      ->expected(2)
      ->excludes(&paths);
  command
      .add_option(
          "--flight-recorder", options.flight_recorder,
          "Dumps of PyTorch's Flight Recorder in JSON, or folders of them, as further input")
      ->type_name("PATH");
  command
      .add_option("--least-change", options.least_change,
                  "Bandwidths that differ by less are the same")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->type_name("SHARE");
  CLI::Option* csv = command
                         .add_option("--throughput", options.throughput.csv,
                                     "CSV file with a column time or step, and throughput (TFLOPS, "
                                     "tokens/s): does communication explain it?")
                         ->type_name("FILE");
  command
      .add_option("--throughput-column", options.throughput.column,
                  "Its column (default: the first beside time and step)")
      ->type_name("NAME");
  command
      .add_option("--throughput-prometheus", options.throughput.prometheus,
                  "A Prometheus that has it instead")
      ->type_name("URL")
      ->excludes(csv);
  command
      .add_option("--throughput-query", options.throughput.query,
                  "Its query, which gives one series")
      ->type_name("PROMQL");
  command
      .add_option("--throughput-ca", options.throughput.ca,
                  "PEM authorities that sign its certificate (default: the system's)")
      ->type_name("FILE");
}

}  // namespace

void register_report(CLI::App& app) {
  auto options = std::make_shared<report::ReportOptions>();
  CLI::App* command = app.add_subcommand("report",
                                         "Summarise a run from NCCL Inspector logs or ncclscope "
                                         "archives: Parquet, statistics, pictures");
  CLI::Option* paths =
      command->add_option("PATH", options->paths, "Files, or folders that are searched")
          ->type_name("PATH");
  command
      ->add_option("--output,-o", options->output, "Folder for the report; made if it is missing")
      ->required()
      ->type_name("DIR");
  command->add_flag("--overwrite", options->overwrite, "Replace a report that is in DIR");
  command
      ->add_option("--job", options->job, "Job of Inspector logs, instead of what their path says")
      ->type_name("ID");
  command->add_flag("--strict", options->strict,
                    "Exit with 1 if any line or file could not be read");
  command->add_option("--rows", options->terminal_rows, "Rows of each table on the terminal")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--threads", options->threads, "Threads; 0 = one per core, at most 8")
      ->check(CLI::Range(0U, 64U))
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option("--memory", options->memory_mb,
                   "Most memory to use, in MB; what does not fit goes to DIR/.scratch")
      ->check(CLI::Range(200, 1000000))
      ->capture_default_str()
      ->type_name("MB");
  add_comparison(*command, *options, *paths);
  command->add_flag("--pictures,!--no-pictures", options->pictures,
                    "Draw report.html and svg/ (default); it takes some seconds");
  command->add_flag("--quiet,-q", options->quiet, "No progress bar and no tables");
  command->footer(
      "Reads .log, .log.gz, .jsonl and .jsonl.gz of NCCL Inspector v4.0 to v4.4. See "
      "docs/report.md, docs/parquet-schema.md.\n"
      "Exit status: 0 a report was written (what could not be read is told on standard error and "
      "in report.json);\n"
      "1 with --strict: it was written, and something could not be read; with --compare: something "
      "changed;\n"
      "2 no report: wrong "
      "arguments, nothing to read,\n"
      "no DuckDB, no space.");
  command->callback([options] {
    const bool reports = !options->paths.empty() || !options->flight_recorder.empty();
    if (reports != options->compare.empty())
      throw CLI::ValidationError("PATH", "wanted what to report, or --compare A B");
    if (options->throughput.prometheus.empty() != options->throughput.query.empty())
      throw CLI::ValidationError("--throughput-prometheus", "goes with --throughput-query");
    try {
      if (const int status = report::run_report(*options); status != kSuccess)
        throw CLI::RuntimeError(status);
    } catch (const CLI::RuntimeError&) {
      throw;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "ncclscope report: %s\n", error.what());
      throw CLI::RuntimeError(kUsage);
    }
  });
}

}  // namespace ncclscope::cli
