// SPDX-License-Identifier: Apache-2.0
#include "cli/report/matched.h"

#include <algorithm>
#include <cstdint>

#include "cli/report/quantiles.h"

namespace ncclscope::cli::report {
namespace {

/// One rank's row of an operation.
struct Told {
  std::int64_t kind = 0, sequence = 0;
  std::int64_t rank = 0;
  bool has_rank = false;
  double seconds = 0;
  std::int64_t time_ns = 0, ranks = 0;
};

/// Takes the rows of each operation together, in the order of the ranks.
class Matcher {
 public:
  explicit Matcher(Connection& connection) : appender_(connection, "matched") {}

  void add(const Told& told) {
    if (told_ == 0 || told.kind != first_.kind || told.sequence != first_.sequence) {
      end_operation();
      begin_operation(told);
      return;
    }
    ++told_;
    complete_ = complete_ && told.has_rank && told.rank != last_told_;
    last_told_ = told.rank;
    ranks_ = std::max(ranks_, told.ranks);
    time_ns_ = std::min(time_ns_, told.time_ns);
    if (told.seconds < least_) {
      least_ = told.seconds;
      last_rank_ = told.rank;
    }
    most_ = std::max(most_, told.seconds);
    sum_ += told.seconds;
  }

  void close() {
    end_operation();
    appender_.close();
  }

 private:
  void begin_operation(const Told& told) {
    first_ = told;
    told_ = 1;
    complete_ = told.has_rank;
    last_told_ = last_rank_ = told.rank;
    ranks_ = told.ranks;
    time_ns_ = told.time_ns;
    least_ = most_ = sum_ = told.seconds;
  }

  void end_operation() {
    if (told_ == 0 || !complete_ || told_ != ranks_) return;
    appender_.integer(first_.kind);
    appender_.integer(first_.sequence);
    appender_.integer(time_ns_);
    appender_.number(least_);
    appender_.number(most_);
    appender_.number(sum_ / static_cast<double>(told_));
    appender_.integer(last_rank_);
    appender_.end_row();
  }

  TableAppender appender_;
  Told first_;
  std::int64_t told_ = 0, last_told_ = 0, last_rank_ = 0, ranks_ = 0, time_ns_ = 0;
  bool complete_ = false;  // no rank twice, and none unknown
  double least_ = 0, most_ = 0, sum_ = 0;
};

}  // namespace

void match_ranks(Connection& connection, const std::string& view, const std::string& where) {
  // Numbers instead of names: a row to sort has 44 bytes.
  connection.run(
      "CREATE OR REPLACE TABLE matched_kinds AS SELECT row_number() OVER () AS kind, * FROM (SELECT"
      " DISTINCT job, coalesce(run, 0) AS run, communicator, collective FROM " +
      view + " WHERE " + where +
      "); CREATE OR REPLACE TABLE matched (kind BIGINT, sequence BIGINT, time_ns BIGINT, least "
      "DOUBLE, most DOUBLE, mean DOUBLE, last_rank BIGINT)");
  Connection writer = connection.another();
  Matcher matcher(writer);
  for_each_row(connection,
               "SELECT k.kind, o.sequence, o.rank, o.seconds, o.time_ns, o.ranks FROM (SELECT *"
               " FROM " +
                   view + " WHERE " + where +
                   ") AS o JOIN matched_kinds AS k ON o.job IS NOT DISTINCT FROM k.job AND"
                   " coalesce(o.run, 0) = k.run AND o.communicator IS NOT DISTINCT FROM"
                   " k.communicator AND o.collective = k.collective ORDER BY 1, 2, 3",
               [&](const Rows& rows, std::size_t r) {
                 matcher.add({rows.integer(0, r), rows.integer(1, r), rows.integer(2, r),
                              !rows.is_null(2, r), rows.number(3, r), rows.integer(4, r),
                              rows.integer(5, r)});
               });
  matcher.close();
}

}  // namespace ncclscope::cli::report
