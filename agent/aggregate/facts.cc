// SPDX-License-Identifier: Apache-2.0
//
// What the live tables know of a peer and its communicators, for who keeps their records.
#include "agent/aggregate/aggregator.h"
#include "agent/aggregate/dimension.h"

namespace ncclscope::agent {

std::optional<Aggregator::ProcessFacts> Aggregator::facts(const SessionState& session) const {
  const SinkProcess* process = session.process;
  if (process == nullptr) return std::nullopt;
  return ProcessFacts{&process->job->identity, process->global_rank, process->local_rank,
                      process->plugin_version};
}

std::optional<Aggregator::CommunicatorFacts> Aggregator::facts(const SessionState& session,
                                                               std::uint16_t communicator) const {
  if (session.process == nullptr) return std::nullopt;
  const CommRank* rank = slot(session, communicator);
  if (rank == nullptr || rank == session.process->folded.get()) return std::nullopt;
  const Communicator& c = *rank->communicator;
  const NamedDimension named = dimension_of_name(c.name);
  CommunicatorFacts out;
  out.comm = c.comm;
  out.hash_known = c.hash_known;
  out.name = c.name;
  out.dimension = named.decided ? named.dimension : c.inferred_dimension;
  out.nranks = c.nranks;
  out.nnodes = c.nnodes;
  out.rank = rank->rank;
  out.gpu = gpus_.index(rank->gpu);
  if (rank->place != nullptr) {
    out.gpu_uuid = rank->place->gpu_uuid;
    out.pci_bus_id = rank->place->pci_bus_id;
  }
  return out;
}

}  // namespace ncclscope::agent
