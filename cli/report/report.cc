// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.h"

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "cli/commands.h"
#include "cli/report/analysis_memory.h"
#include "cli/report/compare.h"
#include "cli/report/draw.h"
#include "cli/report/flight_operations.h"
#include "cli/report/inputs.h"
#include "cli/report/memory.h"
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

/// A folder for DuckDB to spill to, gone at the end if it was made.
class ScratchFolder {
 public:
  explicit ScratchFolder(fs::path path) : path_(std::move(path)) {}
  ~ScratchFolder() {
    std::error_code ignored;
    if (made_) fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  void make() {
    made_ = true;
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool made_ = false;
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

/// The folder of a job's operations, made if it is missing.
std::string job_folder(const ReportOptions& options, const std::string& job) {
  const fs::path folder =
      options.output / kOperationsFolder / (std::string(kJobColumn) + "=" + folder_name(job));
  fs::create_directories(folder);
  return folder;
}

/// How the memory is divided: half of it is DuckDB's, a fifth the tally's, an eighth the batches';
/// the rest is for readers, allocators and what DuckDB does not count.
std::uint64_t memory_bytes(const ReportOptions& options) {
  return options.memory_mb * 1000 * 1000;
}

/// Each job's files become operations/job=<id>/*.parquet. Returns the columns that there were
/// besides `columns`.
ColumnSet write_operations(Database& database, const ReportOptions& options, const Inputs& inputs,
                           unsigned threads, ColumnSet columns, StringPool& pool,
                           ReadAccount& account, PathsSeen& paths, Tally* tally = nullptr) {
  const std::span<const Input> files = inputs.files;
  ColumnSet lost = 0;
  std::size_t begin = 0;
  while (begin < files.size() && lost == 0) {
    std::size_t end = begin;
    while (end < files.size() && files[end].job == files[begin].job) ++end;
    InputSource source(files.subspan(begin, end - begin), pool, account, paths);
    const auto readers = static_cast<unsigned>(std::min<std::size_t>(threads, end - begin));
    if (tally != nullptr) tally->begin_job(pool.intern(files[begin].job), readers);
    lost = write_parquet(database, source, pool,
                         {.folder = job_folder(options, files[begin].job),
                          .threads = readers,
                          .memory_bytes = memory_bytes(options) / 8,
                          .columns = columns,
                          .tally = tally});
    begin = end;
  }
  return lost;
}

/// Dumps become operations/job=<id>/flight_*.parquet.
void write_flight(Database& database, const ReportOptions& options, StringPool& pool,
                  Tally& tally) {
  if (options.flight_recorder.empty()) return;
  FlightSource source(read_flight_dumps(options.flight_recorder), pool);
  const std::string job = options.job.empty() ? "unknown" : options.job;
  tally.begin_job(pool.intern(job), 1);
  (void)write_parquet(database, source, pool,
                      {.folder = job_folder(options, job),
                       .prefix = "flight",
                       .memory_bytes = memory_bytes(options) / 8,
                       .tally = &tally});
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

/// Is anything wanted beside the tables? It is computed from the Parquet files.
bool wants_more_than_tables(const ReportOptions& options) {
  return options.pictures || !options.throughput.csv.empty() ||
         !options.throughput.prometheus.empty();
}

/// Each has a file, a batch and DuckDB's copies of it at hand, so the memory bounds them.
unsigned threads_of(const ReportOptions& options) {
  constexpr std::uint64_t kBytesOfThread = 60'000'000;
  const std::uint64_t wanted = options.threads != 0
                                   ? options.threads
                                   : std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  return static_cast<unsigned>(std::clamp<std::uint64_t>(
      wanted, 1, std::max<std::uint64_t>(1, memory_bytes(options) / kBytesOfThread)));
}

/// Between phases; little freed memory is not worth the time.
void give_back_much_memory(const ReportOptions& options) {
  if (resident_bytes() > memory_bytes(options) / 2) give_back_freed_memory();
}

void give_duckdb_its_share(Connection& connection, const ReportOptions& options) {
  begin_analysis(connection,
                 analysis_share(memory_bytes(options), resident_bytes(), threads_of(options)));
}

/// What stands out, and what is to be drawn.
Drawn look(Database& database, const ReportOptions& options, const std::vector<Insight>& known) {
  Connection connection = database.connect();
  connection.run(operations_view(options.output));
  give_duckdb_its_share(connection, options);
  return draw_report(connection, options.output, options.pictures, options.throughput, known);
}

/// Without the drawing library there is a report all the same. DuckDB is to be gone: the
/// interpreter that draws takes 80 MB. Returns the page's path; empty: there is none.
std::string draw_page(const Page& page, const ReportOptions& options) {
  give_back_much_memory(options);
  try {
    return write_page(page, options.output).html;
  } catch (const AssetError& error) {
    std::fprintf(stderr, "no pictures: %s\n", error.what());
    return {};
  }
}

/// Makes `view` of what is at `path`: the folder of a report, or inputs, which are written to
/// OUTPUT/<view>/operations first. Returns how many lines and files could not be read.
std::uint64_t open_side(Database& database, Connection& connection, const ReportOptions& options,
                        const std::string& path, const std::string& view, unsigned threads,
                        StringPool& pool) {
  if (fs::is_directory(fs::path(path) / kOperationsFolder)) {
    connection.run(operations_view(path, view));
    return 0;
  }
  ReportOptions side = options;
  side.paths = {path};
  side.output = options.output / view;
  const Inputs inputs = find_inputs(side.paths, side.job);
  fs::create_directories(side.output / kOperationsFolder);
  ReadAccount account;
  PathsSeen paths;
  (void)write_operations(database, side, inputs, threads, kAllColumns, pool, account, paths);
  tell_damage(account, inputs);
  if (account.counts().operations == 0) throw InputError(path + ": no operation in it");
  connection.run(operations_view(side.output, view));
  return account.counts().bad_lines + account.counts().bad_files;
}

/// Every file that DuckDB writes takes and frees some MB in pieces of up to 1 MB. Handing them back
/// to the kernel each time costs a twentieth of the whole run.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kMiB = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, 32 * kMiB);
  mallopt(M_TRIM_THRESHOLD, 512 * kMiB);
  mallopt(M_TOP_PAD, 8 * kMiB);
#endif
}

/// Side by side: each is a stream of its own.
void write_tables(const Statistics& statistics, const ReportOptions& options, const Inputs& inputs,
                  const ReadAccount& account) {
  auto csv = std::async(std::launch::async, [&] { write_csv(statistics, options.output); });
  write_json(statistics, options.output, inputs, account);
  csv.get();
}

/// What is left of the statistics when the tables are written.
struct Tables {
  std::string summary;  // for the terminal
  std::vector<Insight> insights;
};

Tables make_tables(const ReportOptions& options, const ScratchFolder& scratch, const Inputs& inputs,
                   const ReadAccount& account, Tally& tally, const StringPool& pool,
                   const PathsSeen& paths, Progress& progress) {
  progress.step("statistics");
  give_back_much_memory(options);
  const Statistics statistics = compute_statistics(tally.tallied(), pool, paths,
                                                   {.scratch = scratch.path(),
                                                    .memory_bytes = memory_bytes(options) / 4,
                                                    .threads = threads_of(options)});
  tally.clear();
  progress.step("writing");
  write_tables(statistics, options, inputs, account);
  return {options.quiet ? "" : summary_text(statistics, inputs, account, options.terminal_rows),
          path_insights(statistics)};
}

struct ComparedSides {
  Comparison comparison;
  std::uint64_t bad = 0;  // lines and files that could not be read
};

ComparedSides compare_sides(const ReportOptions& options, const ScratchFolder& scratch,
                            Progress& progress) {
  const unsigned threads = threads_of(options);
  // While files are read each thread runs its own queries, and DuckDB's would only be in the way.
  Database database({.memory_bytes = memory_bytes(options) / 2,
                     .threads = 1,
                     .temporary_folder = scratch.path()});
  Connection connection = database.connect();
  StringPool pool;
  progress.step("reading A");
  std::uint64_t bad =
      open_side(database, connection, options, options.compare[0], "a", threads, pool);
  progress.step("reading B");
  bad += open_side(database, connection, options, options.compare[1], "b", threads, pool);
  progress.step("comparing");
  give_back_much_memory(options);
  give_duckdb_its_share(connection, options);
  CompareOptions settings;
  settings.least_change = options.least_change;
  return {compare_runs(connection, "a", "b", {"A", printable(options.compare[0]), {}, {}},
                       {"B", printable(options.compare[1]), {}, {}}, settings),
          bad};
}

int run_comparison(const ReportOptions& options) {
  prepare_output(options);
  ScratchFolder scratch(options.output / ".scratch");
  scratch.make();
  Progress progress(!options.quiet);
  const auto [comparison, bad] = compare_sides(options, scratch, progress);
  write_json_file(options.output / "compare.json", comparison_json(comparison));
  const std::string page = options.pictures ? draw_page(comparison_page(comparison), options) : "";
  progress.done();
  if (!options.quiet)
    std::fputs(comparison_text(comparison, options.terminal_rows).c_str(), stdout);
  std::printf("%s\n", (options.output / "compare.json").c_str());
  if (!page.empty()) std::printf("%s\n", page.c_str());
  if (options.strict && bad > 0) return kNegative;
  return comparison.changes.empty() ? kSuccess : kNegative;
}

}  // namespace

int run_report(const ReportOptions& options) {
  keep_freed_memory();
  if (!options.compare.empty()) return run_comparison(options);
  ScratchFolder scratch(options.output / ".scratch");
  // Its 70 MB take as long to load as the inputs to find. A failure is told below.
  // While files are read each thread runs its own queries, and DuckDB's would only be in the way.
  std::optional<Database> database(std::in_place,
                                   DatabaseOptions{.memory_bytes = memory_bytes(options) / 2,
                                                   .threads = 1,
                                                   .temporary_folder = scratch.path()});
  check_throughput(options.throughput);
  const Inputs inputs = options.paths.empty() ? Inputs() : find_inputs(options.paths, options.job);
  prepare_output(options);
  scratch.make();
  const unsigned threads = threads_of(options);
  Progress progress(!options.quiet);

  StringPool pool;
  ReadAccount account;
  PathsSeen paths;
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
  Tally tally(scratch.path(), memory_bytes(options) / 5);
  if (write_operations(*database, options, inputs, threads, columns, pool, account, paths,
                       &tally) != 0) {
    account.reset();  // a column that the first lines did not show: once more, with all
    paths.clear();
    tally.clear();
    fs::remove_all(options.output / kOperationsFolder);
    fs::create_directories(options.output / kOperationsFolder);
    (void)write_operations(*database, options, inputs, threads, kAllColumns, pool, account, paths,
                           &tally);
  }
  write_flight(*database, options, pool, tally);
  progress.done();
  tell_damage(account, inputs);
  const ReadCounts counts = account.counts();
  if (counts.operations == 0 && options.flight_recorder.empty())
    throw InputError("no operation in any of the input files");

  // If it has no more to do, its memory is given back beside the statistics.
  std::future<void> closing;
  if (!wants_more_than_tables(options))
    closing = std::async(std::launch::async, [&] { database.reset(); });
  Tables tables = make_tables(options, scratch, inputs, account, tally, pool, paths, progress);
  Drawn drawn{std::move(tables.insights), {}, {}};
  std::string page;
  if (wants_more_than_tables(options)) {
    progress.step("pictures");
    give_back_much_memory(options);
    drawn = look(*database, options, drawn.insights);
    database.reset();
    if (drawn.page) page = draw_page(*drawn.page, options);
  }
  progress.done();
  if (!drawn.throughput_missing.empty())
    std::fprintf(stderr, "no throughput: %s\n", drawn.throughput_missing.c_str());
  std::fputs(tables.summary.c_str(), stdout);
  if (!options.quiet && !drawn.insights.empty())
    std::fputs(insights_text(drawn.insights).c_str(), stdout);
  std::printf("%s\n", (options.output / "report.json").c_str());
  if (!page.empty()) std::printf("%s\n", page.c_str());
  const bool something_missing =
      counts.bad_lines + counts.bad_files > 0 || !drawn.throughput_missing.empty();
  return options.strict && something_missing ? kNegative : kSuccess;
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
                    "Exit with 1 if any line or file, or the throughput, could not be read");
  command->add_option("--rows", options->terminal_rows, "Rows of each table on the terminal")
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option(
          "--threads", options->threads,
          "Threads; 0 = one per core, at most 8; never more than one for each 60 MB of memory")
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
                    "Say what stands out and draw report.html and svg/ (default), which takes some "
                    "seconds, or make the tables only");
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
    if (!options->compare.empty() && options->throughput.any())
      throw CLI::ValidationError("--compare", "takes no throughput: it is held against one run");
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
