// SPDX-License-Identifier: Apache-2.0
//
// Two sources per job, merged when somebody asks.
#include "agent/identity/job_table.h"

#include <algorithm>
#include <set>

#include "agent/base/result.h"

namespace ncclscope::agent {
namespace {

/// Takes over what `from` knows and `into` does not. Times are the table's own.
void fill_in(JobFacts& into, const JobFacts& from) {
  const auto text = [](std::string& a, const std::string& b) {
    if (a.empty()) a = b;
  };
  text(into.user, from.user);
  if (into.uid < 0) into.uid = from.uid;
  text(into.job_name, from.job_name);
  text(into.partition, from.partition);
  text(into.account, from.account);
  text(into.array_job_id, from.array_job_id);
  text(into.array_task, from.array_task);
  text(into.het_job_id, from.het_job_id);
  text(into.het_offset, from.het_offset);
  if (!into.restarts) into.restarts = from.restarts;
}

bool different_owner(const JobFacts& a, const JobFacts& b) {
  return a.uid >= 0 && b.uid >= 0 && a.uid != b.uid;
}

}  // namespace

std::optional<JobFacts> JobTable::find(std::string_view slurm_job_id) const {
  const auto it = jobs_.find(slurm_job_id);
  if (it == jobs_.end() || !it->second.in_queue) missed_ = true;
  if (it == jobs_.end()) return std::nullopt;
  const Entry& e = it->second;
  JobFacts facts = e.reported;
  fill_in(facts, e.queued);
  // A process that comes after the end may be of a run that no prolog reported (SLURM can leave it
  // out when it requeues a job to the same node): its own word counts then.
  if (e.ended) facts.restarts.reset();
  facts.started_ns = e.started_ns;
  facts.ended_ns = e.ended_ns;
  return facts;
}

std::uint32_t JobTable::start(std::string_view slurm_job_id, const JobFacts& facts) {
  ++generation_;
  Entry& e = entry(slurm_job_id);
  // The cluster may have begun to count anew.
  if (different_owner(facts, e.reported) || different_owner(facts, e.queued)) e = Entry();
  const std::uint32_t before = e.reported.restarts.value_or(e.queued.restarts.value_or(0));
  const bool first = e.started_ns == 0;
  const bool next = !first && (e.ended || facts.restarts.value_or(0) > before);
  JobFacts merged = facts;
  if (next && !merged.restarts) merged.restarts = before + 1;
  fill_in(merged, e.reported);
  e.reported = std::move(merged);
  if (first || next) begin_run(e);
  return e.reported.restarts.value_or(before);
}

bool JobTable::end(std::string_view slurm_job_id) {
  const auto it = jobs_.find(slurm_job_id);
  if (it == jobs_.end()) return false;
  end_run(it->second);
  return true;
}

void JobTable::set_queue(const std::vector<QueuedJob>& jobs) {
  std::set<std::string_view> listed;
  for (const QueuedJob& job : jobs) {
    if (listed.size() >= options_.max_jobs) break;
    listed.insert(job.slurm_job_id);
    Entry& e = entry(job.slurm_job_id);
    if (different_owner(job.facts, e.reported) || different_owner(job.facts, e.queued)) e = Entry();
    if (e.in_queue && e.queued == job.facts) continue;
    // A job whose epilog has run stays listed for a moment: that alone makes it no new run.
    const std::uint32_t before = e.reported.restarts.value_or(e.queued.restarts.value_or(0));
    const bool restarted = job.facts.restarts.value_or(0) > before;
    if (restarted) e.reported.restarts = job.facts.restarts;
    e.queued = job.facts;
    e.in_queue = true;
    if (e.started_ns == 0 || restarted || e.left_queue) begin_run(e);
    ++generation_;
  }
  for (auto& [id, e] : jobs_) {
    if (!e.in_queue || listed.contains(id)) continue;
    e.in_queue = false;
    e.left_queue = true;
    if (!e.ended) end_run(e);
  }
}

void JobTable::tick() {
  const std::uint64_t now = clock_.monotonic_ns();
  std::erase_if(jobs_, [&](const auto& job) {
    const Entry& e = job.second;
    return e.ended && !e.in_queue && now - e.ended_ns >= options_.grace_ns;
  });
}

JobTable::Entry& JobTable::entry(std::string_view slurm_job_id) {
  if (const auto it = jobs_.find(slurm_job_id); it != jobs_.end()) return it->second;
  if (jobs_.size() >= options_.max_jobs) make_room();
  return jobs_[std::string(slurm_job_id)];
}

void JobTable::make_room() {
  const auto first_to_go =
      std::min_element(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) {
        const auto order = [](const Entry& e) {
          return std::pair(!e.ended, e.ended ? e.ended_ns : e.started_ns);
        };
        return order(a.second) < order(b.second);
      });
  if (first_to_go == jobs_.end()) return;
  full_.log(clock_.monotonic_ns(), LogLevel::kWarning,
            concat("more than ", options_.max_jobs, " SLURM jobs: what was known of job ",
                   first_to_go->first, " is forgotten; max_slurm_jobs may be raised"));
  jobs_.erase(first_to_go);
}

void JobTable::begin_run(Entry& e) const {
  // Never at or before the end of the run before, however coarse the clock.
  e.started_ns = std::max(clock_.monotonic_ns(), e.ended_ns + 1);
  e.ended = false;
  e.left_queue = false;
}

void JobTable::end_run(Entry& e) const {
  e.ended = true;
  e.ended_ns = clock_.monotonic_ns();
}

}  // namespace ncclscope::agent
