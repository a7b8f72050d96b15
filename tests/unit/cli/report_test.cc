// SPDX-License-Identifier: Apache-2.0
//
// Parts of `ncclscope report`: the schema and its page, classes, statistics both ways, rows of an
// archive. Those that need DuckDB are skipped where it is not (in CI they fail). The whole is
// tested in tests/e2e/report.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
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
  EXPECT_EQ(paths_text({"RING", "TREE", "PAT", "SYMMETRIC"}, false), "");
  EXPECT_EQ(paths_text({"RING"}, true), "network");
  EXPECT_EQ(paths_text({"NVLS"}, false), "nvlink-sharp");
  EXPECT_EQ(paths_text({"NVLS_TREE"}, false), "nvlink-sharp+network");
  EXPECT_EQ(paths_text({"COLLNET_CHAIN", "NVLS"}, false), "nvlink-sharp+network+network-sharp");
}

TEST(ReportPaths, ContradictRanksAndNodesOnlyWhereTheyAreKnown) {
  SeenOfCommunicator seen;
  EXPECT_EQ(remark_of(8, 1, seen), "");
  seen.nodes = {"a", "b"};
  seen.ranks = {0, 1, 2, 3};
  EXPECT_EQ(remark_of(8, 2, seen), "");
  EXPECT_EQ(remark_of(8, 1, seen), "nodes_as_one");
  EXPECT_EQ(remark_of(4, 4, seen), "node_as_several");
  EXPECT_EQ(remark_of(8, 4, seen), "");  // the other ranks may be on the other nodes
  EXPECT_EQ(remark_of(4, 0, seen), "");
  seen.nodes = {"a"};
  EXPECT_EQ(remark_of(4, 1, seen), "");
  seen.network_ranks = {3};
  EXPECT_EQ(remark_of(4, 1, seen), "network_within_node");
  EXPECT_EQ(remark_of(8, 2, seen), "");
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

/// All tables of statistics get another name.
void put_aside(Connection& connection) {
  for (const Grouping& grouping : groupings())
    connection.run("ALTER TABLE " + std::string(grouping.table) + " RENAME TO other_" +
                   grouping.table);
}

/// The tables of statistics are those that were put aside. Equal values come in another order,
/// which may round the last digit of sums differently.
void expect_same_tables(Connection& connection) {
  for (const Grouping& grouping : groupings()) {
    std::string same_keys,
        differs =
            "a.operations <> b.operations OR a.timed <> b.timed OR a.total_bytes IS DISTINCT FROM "
            "b.total_bytes OR a.first_ns IS DISTINCT FROM b.first_ns OR a.last_ns IS DISTINCT FROM "
            "b.last_ns";
    for (const char* key : grouping.keys)
      same_keys += std::string(same_keys.empty() ? "" : " AND ") + "a." + key +
                   " IS NOT DISTINCT FROM b." + key;
    for (const char* column : grouping.describe)
      differs += std::string(" OR a.") + column + " IS DISTINCT FROM b." + column;
    for (const std::string measure : kMeasures) {
      for (const char* statistic : kStatistics) {
        const std::string column = measure + "_" + statistic;
        differs += " OR (a." + column + " IS NULL) <> (b." + column + " IS NULL) OR abs(a." +
                   column + " - b." + column + ") > 1e-12 * abs(b." + measure + "_mean)";
      }
    }
    const std::string table = grouping.table, other = std::string("other_") + grouping.table;
    const std::int64_t count = number_of(connection, "SELECT count(*) FROM " + table);
    EXPECT_GE(count, 7) << table;
    EXPECT_EQ(number_of(connection, "SELECT count(*) FROM " + other), count) << table;
    EXPECT_EQ(number_of(connection, "SELECT count(*) FROM " + table + " a JOIN " + other +
                                        " b ON " + same_keys),
              count)
        << table;
    EXPECT_EQ(number_of(connection, "SELECT count(*) FROM " + table + " a JOIN " + other +
                                        " b ON " + same_keys + " WHERE " + differs),
              0)
        << table;
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

TEST_F(ReportWithDuckdb, PathsBecomeColumnsOfCommunicatorsAndWords) {
  Connection connection = database_->connect();
  connection.run(
      "CREATE TABLE communicators AS SELECT * FROM (VALUES ('7', '0xa', 'tp', 2, 1, 5.0), ('7', "
      "'0xb', NULL, 2, 1, 6.0), ('7', '0xc', 'dp', 2, 2, 7.0)) AS t(job, communicator, "
      "communicator_name, ranks, nodes, total_seconds);"
      "CREATE TABLE statistics AS SELECT '7' AS job, '0xa' AS communicator, 'NVLS' AS algorithm");
  PathsSeen paths;
  paths.add({{{"7", "0xa"}, {{"n0"}, {0}, {0}, 10}}, {{"7", "0xb"}, {{"n0"}, {0, 1}, {}, 0}}});
  paths.add({{{"7", "0xa"}, {{"n1"}, {1}, {1}, 20}}, {{"7", "0xb"}, {{"n1"}, {1}, {}, 0}}});
  add_paths(connection, paths);
  Rows rows = connection.query(
      "SELECT communicator, paths_seen, network_ranks, network_bytes, remark FROM communicators "
      "ORDER BY 1");
  ASSERT_TRUE(rows.next_chunk());
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows.text(1, 0), "nvlink-sharp+network");
  EXPECT_EQ(rows.integer(2, 0), 2);
  EXPECT_EQ(rows.integer(3, 0), 30);
  EXPECT_EQ(rows.text(4, 0), "nodes_as_one");
  EXPECT_TRUE(rows.is_null(1, 1) && rows.is_null(2, 1) && rows.is_null(3, 1));
  EXPECT_TRUE(rows.is_null(1, 2) && rows.is_null(4, 2));
  const std::vector<Insight> insights = path_insights(connection);
  ASSERT_EQ(insights.size(), 1U);
  EXPECT_EQ(insights[0].text,
            "2 communicators, such as 0xb, are on several nodes that NCCL takes for one.");
}

TEST_F(ReportWithDuckdb, StatisticsOfWhatWasTalliedAreThoseOfTheParquetFiles) {
  StringPool pool;
  Tally tally(std::uint64_t{64} << 20);
  for (const auto& [job, rows] : {std::pair{"4711", 1000}, std::pair{"a job", 1500}}) {
    RandomSource source(pool, 16, rows);
    const auto folder = folder_ / "operations" / (std::string("job=") + job);
    std::filesystem::create_directories(folder);
    tally.begin_job(pool.intern(job));
    // So little memory that each thread writes several files, with more steps than a byte counts.
    EXPECT_EQ(write_parquet(*database_, source, pool,
                            {.folder = folder, .threads = 3, .memory_bytes = 1, .tally = &tally}),
              0U);
  }
  ASSERT_TRUE(tally.complete());
  Connection connection = database_->connect();
  connection.run(operations_view(folder_));
  EXPECT_EQ(number_of(connection, "SELECT count(*) FROM operations"), 16 * 2500);
  EXPECT_EQ(number_of(connection, "SELECT count(DISTINCT step) FROM operations WHERE job = '4711'"),
            1000);
  EXPECT_EQ(number_of(connection,
                      "SELECT count(*) FROM operations WHERE communicator = '0x7' AND step = 'step "
                      "999' AND file LIKE 'a file with a long name 1_'"),
            4);
  compute_statistics(*database_, connection, {.values_in_memory = 10'000'000, .threads = 2});
  put_aside(connection);
  compute_statistics(*database_, connection, {.threads = 2, .pool = &pool}, tally.take());
  expect_same_tables(connection);
}

TEST_F(ReportWithDuckdb, ATallyGivesUpWhereItsMemoryEnds) {
  StringPool pool;
  Tally tally(100'000);
  for (const int rows : {10, 10'000}) {
    RandomSource source(pool, 4, rows);
    tally.begin_job(pool.intern("4711"));
    EXPECT_EQ(write_parquet(*database_, source, pool,
                            {.folder = folder_, .threads = 2, .memory_bytes = 1, .tally = &tally}),
              0U);
    EXPECT_EQ(tally.complete(), rows == 10);
  }
  tally.clear();
  EXPECT_TRUE(tally.complete());
  EXPECT_TRUE(tally.take().groups.empty());
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

TEST_F(ReportWithDuckdb, StatisticsAreTheSameInMemoryAndSortedByDuckdb) {
  Connection connection = database_->connect();
  // 20,000 rows of 3 jobs, NULL algorithms, untimed operations, groups of one, times with and
  // without many repetitions.
  connection.run(
      "CREATE TABLE operations AS SELECT (i % 3)::VARCHAR AS job, '0x' || (i % 7) AS communicator, "
      "NULL::VARCHAR AS communicator_name, "
      "NULL::VARCHAR AS dimension, 8 AS ranks, 2 AS nodes, 'mixed' AS communication_class, (i % "
      "8)::INTEGER AS rank, "
      "'node' || (i % 2) AS node, NULL::VARCHAR AS gpu, CASE WHEN i = 5 THEN 'Broadcast' ELSE "
      "'AllReduce' END AS collective, "
      "(1024 << (i % 3))::BIGINT AS bytes, CASE WHEN i % 2 = 0 THEN 'RING' END AS algorithm, "
      "NULL::VARCHAR AS protocol, i AS time_ns, "
      "CASE WHEN i % 11 = 0 THEN NULL WHEN i % 2 = 0 THEN (hash(i) % 50 + 1) / 1e6 ELSE (hash(i) % "
      "1000000007 + 1) / 1e9 END AS seconds, "
      "seconds * 3e9 AS algbw, CASE WHEN i % 13 = 0 THEN NULL ELSE sqrt(seconds) END AS busbw FROM "
      "range(20000) t(i)");
  compute_statistics(*database_, connection, {.values_in_memory = 1000000, .threads = 2});
  put_aside(connection);
  compute_statistics(*database_, connection, {.values_in_memory = 0, .threads = 2});
  expect_same_tables(connection);
  // And DuckDB's own aggregates agree.
  EXPECT_EQ(number_of(connection,
                      "SELECT count(*) FROM statistics_by_class s JOIN (SELECT job, collective, "
                      "bytes, algorithm, count(*) AS n, "
                      "count(seconds) AS timed, quantile_cont(seconds, 0.05) AS p5, "
                      "quantile_cont(busbw, 0.99) AS p99, "
                      "stddev_samp(algbw) AS deviation, avg(seconds) AS mean FROM operations GROUP "
                      "BY ALL) o ON s.job = o.job AND "
                      "s.collective = o.collective AND s.bytes = o.bytes AND s.algorithm IS NOT "
                      "DISTINCT FROM o.algorithm WHERE "
                      "n <> operations OR o.timed <> s.timed OR abs(p5 - seconds_p5) > 1e-12 * p5 "
                      "OR abs(p99 - busbw_p99) > 1e-12 * p99 "
                      "OR abs(deviation - algbw_stddev) > 1e-9 * deviation OR abs(mean - "
                      "seconds_mean) > 1e-12 * mean"),
            0);
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
  const PathsSeen::Seen seen = paths_.seen();
  ASSERT_EQ(seen.size(), 1U);
  const auto& [key, communicator] = *seen.begin();
  EXPECT_EQ(key, PathsSeen::Key("4711", "0xdeadbeef"));
  EXPECT_EQ(communicator.nodes, std::set<std::string>{"node0"});
  EXPECT_EQ(communicator.ranks, (std::set<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(communicator.network_ranks, (std::set<std::int64_t>{0, 1}));
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
