// SPDX-License-Identifier: Apache-2.0
//
// Parts of `ncclscope report`: the schema and its page, classes, statistics, rows of an
// archive. Those that need DuckDB are skipped where it is not (in CI they fail). The whole is
// tested in tests/e2e/report.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "archive/reader.h"
#include "archive/writer.h"
#include "cli/report/classification.h"
#include "cli/report/duckdb.h"
#include "cli/report/inputs.h"
#include "cli/report/operations.h"
#include "cli/report/output.h"
#include "cli/report/paths.h"
#include "cli/report/progress.h"
#include "cli/report/reading.h"
#include "cli/report/schema.h"
#include "cli/report/statistics.h"
#include "cli/report/tally.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/archive/traffic.h"

namespace ncclscope::cli::report {
namespace {

TEST(ReportSchema, IsTheListOfItsPage) {
  std::ifstream page(NCCLSCOPE_SOURCE_DIR "/docs/parquet-schema.md");
  ASSERT_TRUE(page.is_open());
  const std::regex row(R"(^\| `([a-z_]+)` \| (text|int32|int64|double) \|.*)");
  std::vector<std::string> documented;
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (std::regex_match(line, match, row))
      documented.push_back(match[1].str() + " " + match[2].str());
  }
  constexpr const char* kTypes[] = {"text", "int32", "int64", "double"};
  std::vector<std::string> declared;
  for (const Column& column : kColumns)
    declared.push_back(std::string(column.name) + " " +
                       kTypes[static_cast<std::size_t>(column.type)]);
  EXPECT_EQ(documented, declared);
}

TEST(ReportClassification, IsInspectors) {
  EXPECT_EQ(communication_class(1, 1), "single-rank");
  EXPECT_EQ(communication_class(8, 1), "nvlink-only");
  EXPECT_EQ(communication_class(8, 8), "hca-only");
  EXPECT_EQ(communication_class(16, 2), "mixed");
  EXPECT_EQ(communication_class(1, 0), "single-rank");
  EXPECT_EQ(communication_class(8, 0), "");
  EXPECT_EQ(communication_class(0, 2), "");
}

TEST(ReportPaths, AreWhatAlgorithmsAndRecordsTell) {
  const auto text = [](std::initializer_list<const char*> algorithms, bool network) {
    PathsTaken paths{.network = network};
    for (const char* algorithm : algorithms) paths.add_algorithm(algorithm);
    return paths.text();
  };
  EXPECT_EQ(text({"RING", "TREE", "PAT", "SYMMETRIC"}, false), "");
  EXPECT_EQ(text({"RING"}, true), "network");
  EXPECT_EQ(text({"NVLS"}, false), "nvlink-sharp");
  EXPECT_EQ(text({"NVLS_TREE"}, false), "nvlink-sharp+network");
  EXPECT_EQ(text({"COLLNET_CHAIN", "NVLS"}, false), "nvlink-sharp+network+network-sharp");
}

TEST(ReportPaths, ContradictRanksAndNodesOnlyWhereTheyAreKnown) {
  SeenOfCommunicator seen;
  EXPECT_EQ(remark_of(8, 1, seen), Remark::kNone);
  seen.nodes = {"a", "b"};
  seen.ranks = {0, 1, 2, 3};
  EXPECT_EQ(remark_of(8, 2, seen), Remark::kNone);
  EXPECT_EQ(remark_of(8, 1, seen), Remark::kNodesAsOne);
  EXPECT_EQ(remark_of(4, 4, seen), Remark::kNodeAsSeveral);
  EXPECT_EQ(remark_of(8, 4, seen), Remark::kNone);  // the other ranks may be on the other nodes
  EXPECT_EQ(remark_of(4, 0, seen), Remark::kNone);
  seen.nodes = {"a"};
  EXPECT_EQ(remark_of(4, 1, seen), Remark::kNone);
  seen.network_ranks = {3};
  EXPECT_EQ(remark_of(4, 1, seen), Remark::kNetworkWithinNode);
  EXPECT_EQ(remark_of(8, 2, seen), Remark::kNone);
  EXPECT_EQ(remark_name(Remark::kNetworkWithinNode), "network_within_node");
  EXPECT_EQ(remark_name(Remark::kNone), "");
}

/// Standard error goes to `file` while this lives.
class StandardErrorInto {
 public:
  explicit StandardErrorInto(int file) : before_(::dup(STDERR_FILENO)) {
    (void)::dup2(file, STDERR_FILENO);
  }
  ~StandardErrorInto() {
    (void)::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  StandardErrorInto(const StandardErrorInto&) = delete;
  StandardErrorInto& operator=(const StandardErrorInto&) = delete;

 private:
  int before_;
};

TEST(ReportProgress, IsDrawnOnATerminal) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(master, 0);
  ASSERT_EQ(::grantpt(master), 0);
  ASSERT_EQ(::unlockpt(master), 0);
  char name[128];
  ASSERT_EQ(::ptsname_r(master, name, sizeof name), 0);
  const int terminal = ::open(name, O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  std::string drawn;
  {
    const StandardErrorInto redirected(terminal);
    Progress progress(true);
    progress.step(
        "reading", [] { return 0.5; }, [] { return std::string("1 MiB of 2 MiB"); });
    // Until it has been drawn, however long this thread or that one is kept from the processor.
    while (drawn.find("of 2 MiB") == std::string::npos) {
      char part[256];
      const ssize_t n = ::read(master, part, sizeof part);
      ASSERT_GT(n, 0);
      drawn.append(part, static_cast<std::size_t>(n));
    }
    progress.done();
  }
  EXPECT_THAT(drawn, testing::HasSubstr(
                         "\r\x1b[Kreading [###############...............] 50 %  1 MiB of 2 MiB"));
  ::close(terminal);
  ::close(master);
}

TEST(ReportProgress, IsNotDrawnIntoFiles) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    const StandardErrorInto redirected(::fileno(file));
    Progress progress(true);
    progress.step("reading");
    progress.done();
  }
  EXPECT_EQ(::lseek(::fileno(file), 0, SEEK_END), 0);
  (void)std::fclose(file);
}

TEST(ReportInputs, TakeJobAndStepFromPaths) {
  EXPECT_EQ(job_of_log("/x/nccl-inspector-4711/host-pid1.log").job, "4711");
  EXPECT_EQ(job_of_log("/x/nccl-inspector-unknown-jobid/host-pid1.log").job, "");
  EXPECT_EQ(job_of_log("/x/88/0/host-pid1.log.gz").job, "88");
  EXPECT_EQ(job_of_log("/x/88/batch/host-pid1.log").step, "batch");
  EXPECT_EQ(job_of_log("/x/88/0/training.log").job, "");
  EXPECT_EQ(job_of_log("/x/run/0/host-pid1.log").job, "");
}

class ReportWithDuckdb : public testing::Test {
 protected:
  void SetUp() override {
    try {
      (void)duckdb_library();
    } catch (const DuckdbError& error) {
      if (std::getenv("CI") != nullptr) FAIL() << error.what();
      GTEST_SKIP() << error.what();
    }
    database_ = std::make_unique<Database>(
        DatabaseOptions{.threads = 2, .temporary_folder = folder_ / "scratch"});
  }

  const tests::TemporaryDirectory temporary_;
  const std::filesystem::path folder_ = temporary_.path();
  std::unique_ptr<Database> database_;
};

std::int64_t number_of(Connection& connection, const std::string& sql) {
  Rows rows = connection.query(sql);
  return rows.next_chunk() ? rows.integer(0, 0) : -1;
}

/// The files that write_csv() wrote hold what DuckDB makes of the view `operations`.
void expect_what_duckdb_computes(Connection& connection, const std::filesystem::path& folder) {
  for (const Grouping& grouping : groupings()) {
    std::string keys = "job", same_keys = "a.job = b.job", described;
    for (const ColumnId column : grouping.keys) {
      const std::string name = column_name(column);
      keys += ", " + name;
      same_keys += " AND a." + name + " IS NOT DISTINCT FROM b." + name;
    }
    std::string differs;
    const auto exact = [&](const std::string& name, const std::string& sql) {
      described += ", " + sql + " AS " + name;
      differs += (differs.empty() ? "a." : " OR a.") + name + " IS DISTINCT FROM b." + name;
    };
    exact("operations", "count(*)");
    exact("timed", "count(seconds)");
    exact("total_bytes", "CAST(sum(bytes) AS BIGINT)");
    exact("first_ns", "min(time_ns)");
    exact("last_ns", "max(time_ns)");
    for (const ColumnId column : grouping.describe) {
      const std::string name = column_name(column);
      const bool text = kColumns[static_cast<std::size_t>(column)].type == ColumnType::kText;
      exact(name, (text ? "min(" : "max(") + name + ")");
    }
    const std::array<std::string, kStatistics.size()> functions{
        "avg(M)",
        "quantile_cont(M, 0.5)",
        "quantile_cont(M, 0.05)",
        "quantile_cont(M, 0.95)",
        "quantile_cont(M, 0.99)",
        "min(M)",
        "max(M)",
        "CASE WHEN count(M) > 1 THEN stddev_samp(M) END"};
    for (const std::string measure : kMeasures) {
      described += ", max(abs(" + measure + ")) AS " + measure + "_scale";
      for (std::size_t i = 0; i < kStatistics.size(); ++i) {
        const std::string name = measure + "_" + kStatistics[i];
        std::string function = functions[i];
        for (std::size_t at = 0; (at = function.find('M', at)) != std::string::npos;)
          function.replace(at, 1, measure);
        described += ", " + function + " AS " + name;
        differs += " OR (a." + name + " IS NULL) <> (b." + name + " IS NULL) OR abs(a." + name +
                   " - b." + name + ") > 1e-10 * b." + measure + "_scale";
      }
    }
    const std::string rows = "read_csv(" +
                             sql_literal(folder / (std::string(grouping.table) + ".csv")) +
                             ", header = true, sample_size = -1) a";
    const std::string both = rows + " JOIN (SELECT " + keys + described +
                             " FROM operations GROUP BY " + keys + ") b ON " + same_keys;
    const std::int64_t groups = number_of(
        connection, "SELECT count(*) FROM (SELECT DISTINCT " + keys + " FROM operations)");
    EXPECT_GE(groups, 7) << grouping.table;
    EXPECT_EQ(number_of(connection, "SELECT count(*) FROM " + rows), groups) << grouping.table;
    EXPECT_EQ(number_of(connection, "SELECT count(*) FROM " + both), groups) << grouping.table;
    EXPECT_EQ(number_of(connection, "SELECT count(*) FROM " + both + " WHERE " + differs), 0)
        << grouping.table;
    EXPECT_EQ(number_of(connection,
                        "SELECT count(*) FROM (SELECT row_number() OVER () AS place, row_number() "
                        "OVER (ORDER BY " +
                            keys + ") AS wanted FROM " + rows + ") WHERE place <> wanted"),
              0)
        << grouping.table;
  }
}

/// Rows of `streams` communicators, each a stream, with NULLs wherever they may be.
class RandomSource : public OperationSource {
 public:
  RandomSource(StringPool& pool, unsigned streams, int rows)
      : pool_(pool), streams_(streams), rows_(rows) {}

  std::unique_ptr<OperationStream> next() override {
    const unsigned number = taken_++;
    if (number >= streams_) return nullptr;
    return std::make_unique<Stream>(pool_, number, rows_);
  }

 private:
  class Stream : public OperationStream {
   public:
    Stream(StringPool& pool, unsigned number, int rows)
        : pool_(pool), number_(number), rows_(rows), random_(number) {}

    bool fill(OperationBatch& batch) override {
      while (row_ < rows_ && !batch.full()) write(batch);
      return row_ < rows_;
    }

   private:
    bool one_of(unsigned n) { return random_() % n == 0; }

    void write(OperationBatch& batch) {
      const std::int64_t row = row_++;
      batch.text(ColumnId::kSource, pool_.intern("random"));
      batch.text(ColumnId::kFile,
                 pool_.intern("a file with a long name " + std::to_string(number_)));
      batch.text(ColumnId::kCommunicator, pool_.intern("0x" + std::to_string(number_ / 2)));
      batch.text(ColumnId::kStep, pool_.intern("step " + std::to_string(row)));
      if (number_ % 3 != 0 && !one_of(3)) batch.text(ColumnId::kNode, pool_.intern("node"));
      batch.text(ColumnId::kCollective, pool_.intern(one_of(2) ? "AllReduce" : "Broadcast"));
      batch.text(ColumnId::kAlgorithm, pool_.intern(one_of(2) ? "RING" : ""));
      if (number_ % 5 != 0) batch.integer(ColumnId::kRank, number_ % 2);
      if (!one_of(4)) batch.integer(ColumnId::kRanks, 2);
      if (!one_of(7)) batch.integer(ColumnId::kBytes, 1024 << (random_() % 3));
      if (!one_of(5)) batch.integer(ColumnId::kTimeNs, 1'000'000 + row);
      if (!one_of(9)) {
        const double seconds =
            static_cast<double>(random_() % (number_ % 2 == 0 ? 50 : 1'000'000) + 1) / 1e6;
        batch.number(ColumnId::kSeconds, seconds);
        if (!one_of(9)) batch.number(ColumnId::kAlgbw, 3 / seconds);
        if (!one_of(9)) batch.number(ColumnId::kBusbw, std::sin(seconds * 1e6));
      }
      batch.end_row();
    }

    StringPool& pool_;
    unsigned number_;
    int rows_, row_ = 0;
    std::mt19937 random_;
  };

  StringPool& pool_;
  unsigned streams_;
  int rows_;
  std::atomic<unsigned> taken_{0};
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(ReportWithDuckdb, StatisticsAreWhatDuckdbComputesWhateverTheMemoryAndTheThreads) {
  Connection connection = database_->connect();
  std::map<std::string, std::string> first;
  struct Case {
    std::uint64_t tally_memory, memory;
    unsigned threads;
  };
  // All values in memory, and room to gather each group's or not; or not in memory.
  for (const auto& [tally_memory, memory, threads] :
       {Case{64 << 20, 64 << 20, 2}, Case{64 << 20, 200'000, 4}, Case{200'000, 200'000, 3},
        Case{0, 0, 1}}) {
    const std::filesystem::path folder = folder_ / std::to_string(threads);
    std::filesystem::create_directories(folder / "scratch");
    StringPool pool;
    Tally tally(folder / "scratch", tally_memory);
    for (const auto& [job, rows] : {std::pair{"4711", 700}, std::pair{"a \"job\", quoted", 300}}) {
      RandomSource source(pool, 16, rows);
      const auto operations = folder / "operations" / ("job=" + std::to_string(rows));
      std::filesystem::create_directories(operations);
      tally.begin_job(pool.intern(job), threads);
      // So little memory that each thread writes several files, with more steps than a byte counts.
      EXPECT_EQ(write_parquet(
                    *database_, source, pool,
                    {.folder = operations, .threads = threads, .memory_bytes = 1, .tally = &tally}),
                0U);
    }
    const Statistics statistics = compute_statistics(
        tally.tallied(), pool, {},
        {.scratch = folder / "scratch", .memory_bytes = memory, .threads = threads});
    write_csv(statistics, folder);
    connection.run(operations_view(folder, "read"));
    connection.run(
        "CREATE OR REPLACE VIEW operations AS SELECT * REPLACE (CASE job WHEN '700' THEN '4711' "
        "ELSE 'a \"job\", quoted' END AS job) FROM read");
    EXPECT_EQ(number_of(connection, "SELECT count(*) FROM operations"), 16 * 1000);
    expect_what_duckdb_computes(connection, folder);
    for (const char* table :
         {"statistics", "statistics_by_rank", "statistics_by_class", "communicators"}) {
      const std::string text = text_of(folder / (std::string(table) + ".csv"));
      EXPECT_EQ(first.try_emplace(table, text).first->second, text) << table << ' ' << memory;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder / "scratch"));
  }
  EXPECT_EQ(number_of(connection, "SELECT count(DISTINCT step) FROM operations WHERE job = '4711'"),
            700);
  EXPECT_EQ(number_of(connection,
                      "SELECT count(*) FROM operations WHERE communicator = '0x7' AND step = 'step "
                      "699' AND file LIKE 'a file with a long name 1_'"),
            2);
}

/// An operation of a rank in a communicator.
struct ToyOperation {
  const char *communicator, *name, *algorithm;
  int rank, ranks, nodes;
  double seconds;
};

class ToySource : public OperationSource {
 public:
  ToySource(StringPool& pool, std::vector<ToyOperation> operations)
      : pool_(pool), operations_(std::move(operations)) {}

  std::unique_ptr<OperationStream> next() override {
    return taken_.exchange(true) ? nullptr : std::make_unique<Stream>(*this);
  }

 private:
  class Stream : public OperationStream {
   public:
    explicit Stream(const ToySource& source) : source_(source) {}
    bool fill(OperationBatch& batch) override {
      for (const ToyOperation& operation : source_.operations_) {
        StringPool& pool = source_.pool_;
        batch.text(ColumnId::kCommunicator, pool.intern(operation.communicator));
        batch.text(ColumnId::kCommunicatorName, pool.intern(operation.name));
        batch.text(ColumnId::kAlgorithm, pool.intern(operation.algorithm));
        batch.integer(ColumnId::kRank, operation.rank);
        batch.integer(ColumnId::kRanks, operation.ranks);
        batch.integer(ColumnId::kNodes, operation.nodes);
        batch.number(ColumnId::kSeconds, operation.seconds);
        batch.end_row();
      }
      return false;
    }

   private:
    const ToySource& source_;
  };

  StringPool& pool_;
  std::vector<ToyOperation> operations_;
  std::atomic<bool> taken_{false};
};

class ToyStatistics : public ReportWithDuckdb {
 protected:
  /// Of job 7.
  Statistics statistics_of(std::vector<ToyOperation> operations, const PathsSeen& paths) {
    const std::filesystem::path scratch = folder_ / "scratch";
    std::filesystem::create_directories(scratch);
    Tally tally(scratch, 1 << 20);
    tally.begin_job(pool_.intern("7"), 1);
    ToySource source(pool_, std::move(operations));
    (void)write_parquet(*database_, source, pool_, {.folder = folder_, .tally = &tally});
    return compute_statistics(tally.tallied(), pool_, paths,
                              {.scratch = scratch, .memory_bytes = 1 << 20});
  }

 private:
  StringPool pool_;
};

TEST_F(ToyStatistics, PathsBecomeColumnsOfCommunicatorsAndWords) {
  PathsSeen paths;
  paths.add({{{"7", "0xa"}, {{"n0"}, {0}, {0}, 10}}, {{"7", "0xb"}, {{"n0"}, {0, 1}, {}, 0}}});
  paths.add({{{"7", "0xa"}, {{"n1"}, {1}, {1}, 20}}, {{"7", "0xb"}, {{"n1"}, {1}, {}, 0}}});
  const Statistics statistics = statistics_of({{"0xa", "tp", "NVLS", 0, 2, 1, 2},
                                               {"0xa", "tp", "NVLS", 1, 2, 1, 3},
                                               {"0xb", "", "RING", 0, 2, 1, 6},
                                               {"0xc", "dp", "RING", 0, 2, 2, 7}},
                                              paths);
  std::vector<CommunicatorRow> rows;
  statistics.communicators.for_each([&](const CommunicatorRow& row) { rows.push_back(row); });
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(statistics.texts.text(rows[0].communicator), "0xa");
  EXPECT_EQ(rows[0].ranks_seen, 2);
  EXPECT_EQ(rows[0].total_seconds, 5);
  EXPECT_EQ(rows[0].paths.text(), "nvlink-sharp+network");
  EXPECT_EQ(rows[0].network_ranks, 2);
  EXPECT_EQ(rows[0].network_bytes, 30);
  EXPECT_EQ(rows[0].remark, Remark::kNodesAsOne);
  EXPECT_EQ(rows[1].paths.text(), "");
  EXPECT_EQ(rows[1].network_ranks, 0);
  EXPECT_EQ(rows[2].paths.text(), "");
  EXPECT_EQ(rows[2].remark, Remark::kNone);
  const std::vector<Insight> insights = path_insights(statistics);
  ASSERT_EQ(insights.size(), 1U);
  EXPECT_EQ(insights[0].text,
            "2 communicators, such as 0xb, are on several nodes that NCCL takes for one.");
}

TEST_F(ReportWithDuckdb, ColumnsThatAreNotWantedAreTold) {
  StringPool pool;
  RandomSource source(pool, 2, 3000);
  const ColumnSet wanted = kAllColumns & ~column_set(ColumnId::kStep, ColumnId::kGpu);
  EXPECT_EQ(write_parquet(*database_, source, pool,
                          {.folder = folder_, .memory_bytes = 1, .columns = wanted}),
            column_set(ColumnId::kStep));
}

TEST_F(ReportWithDuckdb, AReaderThatThrowsStopsTheOthers) {
  class Throwing : public OperationSource {
   public:
    std::unique_ptr<OperationStream> next() override {
      throw std::runtime_error("the disk is on fire");
    }
  };
  StringPool pool;
  Throwing source;
  EXPECT_THROW((void)write_parquet(*database_, source, pool, {.folder = folder_, .threads = 3}),
               std::runtime_error);
}

TEST_F(ToyStatistics, JsonHasTheRowsWithMostTime) {
  const Statistics statistics = statistics_of({{"0xa", "tp", "RING", 0, 1, 1, 5},
                                               {"0xb", "dp", "RING", 0, 1, 1, 1},
                                               {"0xc", "pp", "RING", 0, 1, 1, 9}},
                                              {});
  const auto communicators_of = [&](std::uint64_t most_rows) {
    write_json(statistics, folder_, {}, ReadAccount(), most_rows);
    const auto json = nlohmann::json::parse(text_of(folder_ / "report.json"));
    std::vector<std::string> names;
    for (const auto& row : json["communicators"]) names.push_back(row["communicator"]);
    return std::pair(names, json["left_out_rows"].dump());
  };
  EXPECT_EQ(communicators_of(3),
            std::pair(std::vector<std::string>{"0xa", "0xb", "0xc"}, std::string("{}")));
  const auto [names, left_out] = communicators_of(2);
  EXPECT_EQ(names, (std::vector<std::string>{"0xa", "0xc"}));
  EXPECT_EQ(left_out, R"({"communicators":1,"statistics":1,"statistics_by_rank":1})");
}

class ArchiveRows : public ReportWithDuckdb {
 protected:
  /// A segment with `operations`, all of one communicator.
  std::string write_segment(const std::vector<wire::Operation>& operations) {
    const auto path = folder_ / "segment.ncsa";
    archive::Status status;
    auto writer = archive::Writer::create(path, {}, status);
    EXPECT_TRUE(status.ok()) << status.message();
    writer->set_job(archive::testing::make_job());
    const std::uint32_t process = writer->add_process(archive::testing::make_process(17));
    const std::uint32_t communicator =
        writer->add_communicator(process, archive::testing::make_communicator(0, 3));
    std::uint64_t index = 0;
    for (const wire::Operation& operation : operations)
      EXPECT_TRUE(
          writer->add(communicator, index++, operation, operation.api_time_ns + 1'000'000'000)
              .ok());
    EXPECT_TRUE(writer->finish().ok());
    return path;
  }

  /// Table `rows` of what the report reads below folder_.
  void read(Connection& connection, ReadAccount& account) {
    const Inputs inputs = find_inputs({folder_}, "");
    ASSERT_EQ(inputs.files.size(), 1U);
    EXPECT_EQ(inputs.files[0].job, "4711");
    StringPool pool;
    InputSource source(inputs.files, pool, account, paths_);
    EXPECT_EQ(write_parquet(*database_, source, pool, {.folder = folder_, .memory_bytes = 1 << 24}),
              0U);
    connection.run("CREATE TABLE rows AS SELECT * FROM read_parquet(" +
                   sql_literal(folder_ / "data_*.parquet") + ")");
  }

  PathsSeen paths_;
};

TEST_F(ArchiveRows, AreWhatTheReaderGives) {
  archive::testing::Traffic traffic(1, 1);
  std::vector<wire::Operation> operations;
  for (int i = 0; i < 5000; ++i) operations.push_back(traffic.next());
  operations[7].flags =
      static_cast<std::uint16_t>(operations[7].flags & ~wire::operation_flags::kTimingMask);
  operations[7].untimed_reason = static_cast<std::uint8_t>(wire::UntimedReason::kCounterDrift);
  const std::string path = write_segment(operations);
  Connection connection = database_->connect();
  ReadAccount account;
  read(connection, account);
  EXPECT_EQ(account.counts().operations, 5000U);
  EXPECT_EQ(account.counts().files, 1U);
  EXPECT_EQ(account.counts().bad_files + account.counts().cut_files, 0U);

  Rows rows = connection.query(
      "SELECT source, file, cluster, run, node, pid, gpu, communicator, communicator_name, rank, "
      "ranks, nodes, dimension, "
      "communication_class, collective, sequence, algorithm, protocol, datatype, channels, bytes, "
      "rank_bytes, enqueued_ns, start_ns, "
      "end_ns, time_ns, seconds, algbw, busbw, timing, nccl_version, peer, root, fused, "
      "queue_seconds FROM rows");
  archive::Status status;
  const auto reader = archive::Reader::open(path, status);
  ASSERT_NE(reader, nullptr);
  const archive::Batch* batch = reader->next();
  std::size_t next = 0, compared = 0;
  while (rows.next_chunk()) {
    for (std::size_t r = 0; r < rows.size(); ++r, ++next, ++compared) {
      if (next == batch->operations.size()) {
        batch = reader->next();
        next = 0;
      }
      ASSERT_NE(batch, nullptr);
      const archive::OperationRow& want = batch->operations[next];
      EXPECT_EQ(rows.text(0, r), "archive");
      EXPECT_EQ(rows.text(1, r), "segment.ncsa");
      EXPECT_EQ(rows.text(2, r), "testcluster");
      EXPECT_EQ(rows.integer(3, r), 2);
      EXPECT_EQ(rows.text(4, r), "node0");
      EXPECT_EQ(rows.integer(5, r), 17);
      EXPECT_EQ(rows.text(6, r), "GPU-1");
      EXPECT_EQ(rows.text(7, r), "0xdeadbeef");
      EXPECT_EQ(rows.text(8, r), "DP \"group\"");
      EXPECT_EQ(rows.integer(9, r), 3);
      EXPECT_EQ(rows.integer(10, r), 8);
      EXPECT_EQ(rows.integer(11, r), 2);
      EXPECT_EQ(rows.text(12, r), "dp");
      EXPECT_EQ(rows.text(13, r), "mixed");
      EXPECT_EQ(rows.text(14, r), model::name(want.function()));
      EXPECT_EQ(rows.integer(15, r), want.record.sequence);
      EXPECT_EQ(rows.text(16, r), "RING");
      EXPECT_EQ(rows.text(17, r), "SIMPLE");
      EXPECT_EQ(rows.text(18, r), "ncclBfloat16");
      EXPECT_EQ(rows.integer(19, r), 16);
      EXPECT_EQ(rows.integer(20, r), static_cast<std::int64_t>(want.bytes()));
      EXPECT_EQ(rows.integer(21, r), static_cast<std::int64_t>(wire::count_of(want.record) * 2));
      EXPECT_EQ(rows.integer(22, r), want.enqueue_epoch_ns());
      EXPECT_EQ(rows.is_null(23, r), !want.start_epoch_ns().has_value());
      if (const auto start = want.start_epoch_ns()) {
        EXPECT_EQ(rows.integer(23, r), *start);
        EXPECT_EQ(rows.integer(24, r), *start + static_cast<std::int64_t>(want.duration_ns()));
        EXPECT_EQ(rows.integer(25, r), rows.integer(24, r));
      }
      if (want.duration_ns() == 0) {
        EXPECT_TRUE(rows.is_null(26, r) && rows.is_null(27, r) && rows.is_null(28, r));
        EXPECT_EQ(rows.text(29, r), "counter_drift");
      } else {
        const double seconds = static_cast<double>(want.duration_ns()) / 1e9;
        EXPECT_DOUBLE_EQ(rows.number(26, r), seconds);
        EXPECT_DOUBLE_EQ(rows.number(27, r), static_cast<double>(want.bytes()) / seconds);
        EXPECT_DOUBLE_EQ(rows.number(28, r), model::bus_bandwidth(want.function(), want.bytes(), 8,
                                                                  want.duration_ns()));
        EXPECT_EQ(rows.text(29, r), "gpu");
      }
      EXPECT_EQ(rows.text(30, r), "2.28.9");
      for (const std::size_t column : {31U, 32U, 33U}) EXPECT_TRUE(rows.is_null(column, r));
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(compared, 5000U);
}

TEST_F(ArchiveRows, TellWhoUsedTheNetwork) {
  const auto path = folder_ / "segment.ncsa";
  archive::Status status;
  auto writer = archive::Writer::create(path, {}, status);
  ASSERT_TRUE(status.ok()) << status.message();
  writer->set_job(archive::testing::make_job());
  const std::uint32_t process = writer->add_process(archive::testing::make_process(17));
  std::vector<std::uint32_t> ids;
  for (const int rank : {0, 1, 2})
    ids.push_back(writer->add_communicator(
        process, archive::testing::make_communicator(static_cast<std::uint16_t>(rank), rank)));
  ids.push_back(writer->add_communicator(
      process, archive::testing::make_communicator(wire::kNoCommunicator, -1)));
  archive::testing::Traffic traffic(1, 1);
  std::uint64_t index = 0;
  for (const std::uint32_t id : ids) {
    wire::NetworkPhases phases{};
    wire::set_header(phases, wire::RecordType::kNetworkPhases);
    phases.steps = id == ids[2] ? 0 : 4;  // NCCL told of no step: nothing was seen
    phases.bytes = 1000;
    for (const int is_send : {0, 1}) {
      phases.is_send = static_cast<std::uint8_t>(is_send);
      ASSERT_TRUE(writer->add(id, index++, phases).ok());
    }
  }
  const wire::Operation operation = traffic.next();
  ASSERT_TRUE(writer->add(ids[0], index++, operation, operation.api_time_ns).ok());
  ASSERT_TRUE(writer->finish().ok());
  Connection connection = database_->connect();
  ReadAccount account;
  read(connection, account);
  const SeenOfCommunicator communicator = paths_.of({"4711", "0xdeadbeef"});
  EXPECT_EQ(communicator.nodes, std::set<std::string>{"node0"});
  EXPECT_EQ(communicator.ranks, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(communicator.network_ranks, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(communicator.network_bytes, 2000U);
}

TEST_F(ArchiveRows, ShareTheTimeOfOneLaunchByBusBytes) {
  archive::testing::Traffic traffic(1, 1);
  std::vector<wire::Operation> operations{traffic.next(), traffic.next(), traffic.next()};
  // An AllReduce and an AllGather of one plan that ran together for 1 ms, and one that ran alone.
  for (int i = 0; i < 2; ++i) {
    operations[static_cast<std::size_t>(i)].count_plan = wire::pack_count_plan(1000, 9);
    operations[static_cast<std::size_t>(i)].gpu_start_ns = operations[0].gpu_start_ns;
    operations[static_cast<std::size_t>(i)].duration_enqueue =
        wire::pack_duration_enqueue(1'000'000, 5);
  }
  write_segment(operations);
  Connection connection = database_->connect();
  ReadAccount account;
  read(connection, account);
  // Bus bytes: 2,000 x 2 x 7/8 and 16,000 x 7/8: shares 1/5 and 4/5.
  Rows rows = connection.query("SELECT seconds, fused, busbw FROM rows ORDER BY sequence");
  ASSERT_TRUE(rows.next_chunk());
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_DOUBLE_EQ(rows.number(0, 0), 0.0002);
  EXPECT_DOUBLE_EQ(rows.number(0, 1), 0.0008);
  EXPECT_EQ(rows.integer(1, 0), 2);
  EXPECT_DOUBLE_EQ(rows.number(2, 0), (2000.0 * 2 + 16000.0) * 7 / 8 / 0.001);
  EXPECT_DOUBLE_EQ(rows.number(2, 1), rows.number(2, 0));
  EXPECT_TRUE(rows.is_null(1, 2));
}

TEST_F(ArchiveRows, OfACutSegmentAreThoseOfItsWholeBlocks) {
  archive::testing::Traffic traffic(1, 1);
  std::vector<wire::Operation> operations;
  for (int i = 0; i < 1000; ++i) operations.push_back(traffic.next());
  const std::string path = write_segment(operations);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  Connection connection = database_->connect();
  ReadAccount account;
  read(connection, account);
  EXPECT_EQ(account.counts().operations, 1000U);
  EXPECT_EQ(account.counts().cut_files, 1U);
  EXPECT_THAT(account.messages(), testing::ElementsAre(testing::HasSubstr("segment.ncsa")));
}

}  // namespace
}  // namespace ncclscope::cli::report
