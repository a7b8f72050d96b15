// SPDX-License-Identifier: Apache-2.0
//
// Keeps each job within its budget of series, in the live tables, so that memory is bounded with
// the series. Steps are taken in order and never taken back: a series that flapped would be worth
// less than one that is gone. Every step moves sums into series that were not there before, so that
// no counter goes down and no rate sees a jump.
#include <algorithm>
#include <utility>

#include "agent/aggregate/aggregator.h"
#include "agent/base/result.h"

namespace ncclscope::agent {
namespace {

const CommunicatorSnapshot* find(const JobSnapshot& job, std::string_view comm) {
  const auto it = std::lower_bound(
      job.communicators.begin(), job.communicators.end(), comm,
      [](const CommunicatorSnapshot& c, std::string_view wanted) { return c.comm < wanted; });
  return it != job.communicators.end() && it->comm == comm ? &*it : nullptr;
}

}  // namespace

std::uint64_t Aggregator::folded() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t count : folds_) sum += count;
  return sum;
}

void Aggregator::count_folds(Job& job, FoldStep step, std::size_t count) {
  job.folded += count;
  folds_[static_cast<std::size_t>(step)] += count;
}

void Aggregator::settle_if_over(Job& job) {
  if (!job.over_allowance()) return;
  JobSnapshot shown;
  settle(job, shown, now_ns_);
}

void Aggregator::settle(Job& job, JobSnapshot& out, std::uint64_t now) {
  const FoldStep before = job.fold;
  for (;;) {
    out = JobSnapshot{};
    fill(job, out, now);
    const std::uint64_t series = count_series(out).most();
    job.allowance = budget_.allowance(job.account);
    if (series <= job.allowance || !fold_further(job, out, series - job.allowance)) {
      budget_.charge(job.account, series);
      job.growth = 0;
      break;
    }
  }
  if (job.fold == before) return;
  fold_log_.log(
      now, LogLevel::kWarning,
      concat("job ", job.identity.job_id, " may have ", job.allowance, " series: folded to step ",
             kFoldStepNames[static_cast<std::size_t>(job.fold)], ", ", job.account.charged,
             " now"));
}

bool Aggregator::fold_further(Job& job, const JobSnapshot& shown, std::uint64_t excess) {
  if (job.fold == FoldStep::kOperation) return false;
  if (job.fold == FoldStep::kRank && fold_newest(job, shown, excess)) return true;
  job.fold = static_cast<FoldStep>(static_cast<int>(job.fold) + 1);
  switch (job.fold) {
    case FoldStep::kNothing:
      break;
    case FoldStep::kCommunicator:
      fold_counters(job);
      break;
    case FoldStep::kProcess:
      fold_processes(job);
      break;
    case FoldStep::kRank:
      job.closed = true;
      fold_newest(job, shown, excess);
      break;
    case FoldStep::kAlgorithm:
    case FoldStep::kSize:
    case FoldStep::kOperation:
      for (auto& [comm, communicator] : job.communicators) {
        if (communicator->own_counters != nullptr) {
          count_folds(job, job.fold, communicator->own_counters->fold(job.fold));
        }
      }
      count_folds(job, job.fold, job.durations.fold(job.fold));
      break;
  }
  return true;
}

void Aggregator::fold_counters(Job& job) {
  Communicator& other = other_communicator(job);
  for (auto& [comm, communicator] : job.communicators) {
    if (communicator->folded || communicator->own_counters == nullptr) continue;
    count_folds(job, FoldStep::kCommunicator, communicator->own_counters->rows().size());
    other.counters->merge(*communicator->own_counters);
    communicator->own_counters.reset();
    communicator->counters = other.counters;
  }
}

void Aggregator::fold_processes(Job& job) {
  count_folds(job, FoldStep::kProcess, job.processes.size());
  std::vector<NetworkSums> rows;
  for (const NetworkSums& from : job.network) {
    auto to = std::find_if(rows.begin(), rows.end(),
                           [&](const NetworkSums& r) { return r.is_send == from.is_send; });
    if (to == rows.end()) {
      to = rows.insert(rows.end(), NetworkSums{});
      to->is_send = from.is_send;
    }
    for (std::size_t i = 0; i < to->phase_seconds.size(); ++i) {
      to->phase_seconds[i] += from.phase_seconds[i];
    }
    to->bytes += from.bytes;
    to->operations += from.operations;
  }
  count_folds(job, FoldStep::kProcess, job.network.size() - rows.size());
  job.network = std::move(rows);
}

/// Folds whole communicators, the newest first, until about `excess` series are gone. False when
/// there is none left.
bool Aggregator::fold_newest(Job& job, const JobSnapshot& shown, std::uint64_t excess) {
  std::vector<Communicator*> newest;
  for (auto& [comm, communicator] : job.communicators) {
    if (!communicator->folded) newest.push_back(communicator.get());
  }
  std::sort(newest.begin(), newest.end(),
            [](const Communicator* a, const Communicator* b) { return a->serial > b->serial; });
  std::uint64_t gone = 0;
  for (Communicator* communicator : newest) {
    if (gone >= excess) break;
    if (const CommunicatorSnapshot* c = find(shown, communicator->comm)) {
      SeriesCount count;
      count_series(*c, count);
      gone += count.most();
    }
    fold_away(*communicator);
  }
  return !newest.empty();
}

/// The communicator and its ranks are gone after this; records that still come are counted in
/// "other".
void Aggregator::fold_away(Communicator& communicator) {
  Job& job = *communicator.job;
  Communicator& other = other_communicator(job);
  FoldedRanks& sums = *other.folded;
  for (const auto& rank : communicator.ranks) {
    flush_all_of(*rank);
    sums.sums.add(rank->sums);
    sums.missing += std::max(rank->progress.dropped, rank->missing());
    sums.queue_seconds += rank->queue_seconds;
    sums.queue_operations += rank->queue_operations;
    retire(rank->source);
    if (rank->process != nullptr && rank->process->slots.find(rank->id) == rank.get()) {
      SlotTable& slots = rank->process->slots;
      const SlotTable::Entry known = slots.entry(rank->id);
      slots.set(rank->id, folded_rank(*rank->process),
                communicator.nranks != 0 ? communicator.nranks : known.nranks, known.gpu);
    }
  }
  if (communicator.own_counters != nullptr) other.counters->merge(*communicator.own_counters);
  erase_communicator(communicator);
}

}  // namespace ncclscope::agent
