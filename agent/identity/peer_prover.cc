// SPDX-License-Identifier: Apache-2.0
//
// Socket options, procfs and what they may be believed for.
#include "agent/identity/peer_prover.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/base/scoped_fd.h"
#include "agent/identity/cgroup_text.h"
#include "agent/identity/proc_text.h"

namespace ncclscope::agent {
namespace {

constexpr std::int64_t kOverflowUid = 65534;
/// SO_PEERPIDFD, which the headers of 2023 do not have.
constexpr int kPeerPidfdOption = 77;

/// A pidfd is readable once its process has ended.
bool process_lives(int pidfd) {
  pollfd poll_for{pidfd, POLLIN, 0};
  return ::poll(&poll_for, 1, 0) == 0;
}

PeerProof proof_of(const CgroupPlace& place) {
  PeerProof proof;
  proof.outcome =
      place.contradictory ? PeerProof::Outcome::kContradictory : PeerProof::Outcome::kRead;
  proof.slurm_job = place.slurm_job;
  proof.slurm_step = place.slurm_step;
  proof.slurm_task = place.slurm_task;
  proof.slurm_uid = place.slurm_uid;
  proof.pod_uid = normal_pod_uid(place.pod_uid);
  proof.container_id = place.container_id;
  proof.runtime = place.runtime;
  return proof;
}

PeerProof nothing(PeerProof::Outcome why) {
  PeerProof proof;
  proof.outcome = why;
  return proof;
}

}  // namespace

PeerProver::PeerProver(Options options, const JobDirectory& jobs, const Clock& clock)
    : options_(std::move(options)),
      jobs_(jobs),
      pods_(options_.pods_log_root, clock),
      buffer_(kMaxFileBytes) {
  const std::string_view map = read_file(options_.proc_root + "/self/uid_map");
  overflow_uid_is_a_user_ = map.empty() || maps_uid(map, kOverflowUid);
}

Result<PeerIdentity> PeerProver::identify(int socket, std::uint64_t queue_empty_ns) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Status::system("SO_PEERCRED");
  }
  Peer peer{credentials.pid, credentials.uid, {}};
  ScopedFd pidfd;
  if (options_.use_pidfd) {
    int fd = -1;
    size = sizeof fd;
    if (::getsockopt(socket, SOL_SOCKET, kPeerPidfdOption, &fd, &size) == 0) {
      pidfd.reset(fd);
      peer.alive = [fd] { return process_lives(fd); };
    } else if (errno != ENOPROTOOPT) {
      // The kernel knows the option but has no such process any more, or no descriptor for us: in
      // either case the pid is not to be trusted.
      peer.alive = [] { return false; };
    }
  }
  return prove(peer, queue_empty_ns);
}

PeerIdentity PeerProver::prove(const Peer& peer, std::uint64_t queue_empty_ns) {
  PeerIdentity identity;
  identity.pid = peer.pid;
  identity.uid = peer.uid == kOverflowUid && !overflow_uid_is_a_user_ ? -1 : peer.uid;
  identity.origin = "the agent socket";
  identity.proof = read_proof(peer, queue_empty_ns);
  identity.principal = "uid:" + std::to_string(peer.uid);
  if (identity.proof.in_pod()) {
    if (std::optional<PodName> pod = pods_.find(identity.proof.pod_uid)) {
      identity.proof.pod_namespace = std::move(pod->pod_namespace);
      identity.proof.pod_name = std::move(pod->name);
    }
  }
  name_principal(identity);
  return identity;
}

void PeerProver::name_principal(PeerIdentity& peer) const {
  const PeerProof& proof = peer.proof;
  if (proof.in_pod()) {
    // Also for a SLURM that runs in the pod: its root says there who the owner is, and must not
    // spend what belongs to others.
    peer.principal = proof.pod_name.empty() ? "pod:" + proof.pod_uid
                                            : "pod:" + proof.pod_namespace + "/" + proof.pod_name;
  } else if (proof.in_slurm()) {
    std::int64_t owner = proof.slurm_uid;
    if (owner < 0) {
      if (const std::optional<JobFacts> facts = jobs_.find(proof.slurm_job)) owner = facts->uid;
    }
    if (owner >= 0) peer.principal = "uid:" + std::to_string(owner);
  }
}

std::string_view PeerProver::read_file(const std::string& path) {
  const ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return {};
  std::size_t held = 0;
  while (held < buffer_.size()) {
    const ssize_t n = ::read(fd.get(), buffer_.data() + held, buffer_.size() - held);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    held += static_cast<std::size_t>(n);
  }
  return {buffer_.data(), held};
}

std::optional<std::uint64_t> PeerProver::start_ticks(const std::string& process) {
  const std::optional<ProcessStart> start = parse_proc_stat(read_file(process + "/stat"));
  if (!start || start->state == 'Z' || start->state == 'X') return std::nullopt;
  return start->start_ticks;
}

PeerProof PeerProver::read_proof(const Peer& peer, std::uint64_t queue_empty_ns) {
  using Outcome = PeerProof::Outcome;
  if (peer.pid <= 0) return nothing(Outcome::kNotVisible);
  const std::string process = options_.proc_root + "/" + std::to_string(peer.pid);
  std::optional<std::uint64_t> started;
  if (peer.alive) {
    if (!peer.alive()) return nothing(Outcome::kGone);
  } else {
    started = start_ticks(process);
    if (!started) return nothing(Outcome::kGone);
    static const auto kTicksPerSecond = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
    const std::uint64_t tick_ns = 1'000'000'000 / kTicksPerSecond;
    if (*started + 1 > queue_empty_ns / tick_ns) return nothing(Outcome::kMayBeReused);
  }
  const std::string_view text = read_file(process + "/cgroup");
  const bool read = !text.empty();
  PeerProof proof = proof_of(parse_cgroup_text(text));
  const bool same = peer.alive ? peer.alive() : start_ticks(process) == started;
  if (!same) return nothing(Outcome::kGone);
  return read ? proof : nothing(Outcome::kUnreadable);
}

}  // namespace ncclscope::agent
