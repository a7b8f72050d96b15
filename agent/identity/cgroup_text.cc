// SPDX-License-Identifier: Apache-2.0
//
// A walk from the root of a path that stops at the first name that a user may have chosen.
#include "agent/identity/cgroup_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>

namespace ncclscope::agent {
namespace {

constexpr std::size_t kMaxLineBytes = 8192;  // the kernel writes paths up to 4096

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kHex = "0123456789abcdef";

bool made_of(std::string_view text, std::string_view alphabet) {
  return !text.empty() && text.find_first_not_of(alphabet) == std::string_view::npos;
}

bool cut_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool cut_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

/// The components of a path, one after the other.
class Components {
 public:
  explicit Components(std::string_view path) : rest_(path) { advance(); }
  /// Empty at the end.
  [[nodiscard]] std::string_view current() const { return current_; }
  void advance() {
    const std::size_t begin = std::min(rest_.find_first_not_of('/'), rest_.size());
    rest_.remove_prefix(begin);
    const std::size_t end = std::min(rest_.find('/'), rest_.size());
    current_ = rest_.substr(0, end);
    rest_.remove_prefix(end);
  }

 private:
  std::string_view rest_, current_;
};

/// The number behind `prefix` in `component`, as digits. Empty if it is none, or starts with 0.
std::string_view number_after(std::string_view prefix, std::string_view component) {
  if (!cut_prefix(component, prefix) || !made_of(component, kDigits)) return {};
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(component.data(), component.data() + component.size(), value);
  if (error != std::errc() || (component.front() == '0' && component.size() > 1)) return {};
  return component;
}

/// "0", "0+1", "batch", "extern", "interactive" from "step_..."; empty if it is no step.
std::string_view step_name(std::string_view component) {
  if (!cut_prefix(component, "step_")) return {};
  // Before 20.11 the batch script and the external step were the two highest numbers.
  if (component == "4294967294") return "batch";
  if (component == "4294967295") return "extern";
  for (const std::string_view name : {"batch", "extern", "interactive"}) {
    if (component == name) return component;
  }
  const std::size_t plus = std::min(component.find('+'), component.size());
  const bool good = made_of(component.substr(0, plus), kDigits) && component.size() <= 21 &&
                    (plus == component.size() || made_of(component.substr(plus + 1), kDigits));
  return good ? component : std::string_view();
}

/// From job_J on.
bool parse_job(Components at, CgroupPlace& place) {
  place.slurm_job = number_after("job_", at.current());
  if (place.slurm_job == "0") place.slurm_job = {};
  if (place.slurm_job.empty()) return false;
  at.advance();
  place.slurm_step = step_name(at.current());
  if (place.slurm_step.empty()) return true;
  at.advance();
  if (at.current() == "user" || at.current() == "slurm") at.advance();
  place.slurm_task = number_after("task_", at.current());
  return true;
}

/// SLURM's own directory and what is in it.
bool parse_slurm(Components at, CgroupPlace& place) {
  std::string_view top = at.current();
  at.advance();
  if (cut_suffix(top, "slurmstepd.scope")) {
    return (top.empty() || (top.size() > 1 && top.back() == '_')) && parse_job(at, place);
  }
  if (top != "slurm" && (!cut_prefix(top, "slurm_") || top.empty())) return false;
  const std::string_view uid = number_after("uid_", at.current());
  if (uid.empty()) return false;
  at.advance();
  if (!parse_job(at, place)) return false;
  std::uint32_t value = 0;
  std::from_chars(uid.data(), uid.data() + uid.size(), value);
  place.slurm_uid = value;
  return true;
}

/// A slice that belongs to the machine. Users' own managers live in user.slice.
bool is_system_slice(std::string_view component) {
  return component.ends_with(".slice") && component != "user.slice" &&
         !component.starts_with("user-");
}

bool is_uid(std::string_view text) {
  if (text.size() == 32) return made_of(text, kHex);
  if (text.size() != 36) return false;
  const char separator = text[8];
  if (separator != '-' && separator != '_') return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != separator : kHex.find(text[i]) == std::string_view::npos) return false;
  }
  return true;
}

bool is_container_id(std::string_view text) {
  return text.size() >= 12 && text.size() <= 64 && made_of(text, kHex);
}

bool is_quality_of_service(std::string_view text) {
  return text == "burstable" || text == "besteffort" || text == "guaranteed";
}

/// The uid in "[<parents>-]kubepods[-<qos>]-pod<uid>.slice"; empty if it is no pod's slice.
std::string_view uid_of_pod_slice(std::string_view component) {
  if (!cut_suffix(component, ".slice")) return {};
  const std::size_t pod = component.rfind("-pod");
  if (pod == std::string_view::npos) return {};
  const std::string_view uid = component.substr(pod + 4);
  std::string_view parent = component.substr(0, pod);
  const std::size_t dash = parent.rfind('-');
  if (dash != std::string_view::npos && is_quality_of_service(parent.substr(dash + 1))) {
    parent = parent.substr(0, dash);
  }
  const bool kubepods = parent == "kubepods" || parent.ends_with("-kubepods");
  return kubepods && !parent.starts_with("user-") && is_uid(uid) ? uid : std::string_view();
}

struct RuntimePrefix {
  std::string_view prefix, runtime;
};
constexpr std::array kPodRuntimes = {
    RuntimePrefix{"cri-containerd-", "containerd"},
    RuntimePrefix{"crio-conmon-", "crio"},
    RuntimePrefix{"crio-", "crio"},
    RuntimePrefix{"docker-", "docker"},
    RuntimePrefix{"libpod-", "podman"},
};
constexpr std::array kPlainRuntimes = {
    RuntimePrefix{"docker-", "docker"},
    RuntimePrefix{"libpod-", "podman"},
    RuntimePrefix{"nerdctl-", "containerd"},
};

/// "<prefix><id>[.scope]".
template <std::size_t kCount>
bool parse_container(const std::array<RuntimePrefix, kCount>& runtimes, std::string_view component,
                     CgroupPlace& place) {
  cut_suffix(component, ".scope");
  for (const RuntimePrefix& known : runtimes) {
    std::string_view id = component;
    if (!cut_prefix(id, known.prefix) || !is_container_id(id)) continue;
    place.container_id = id;
    place.runtime = known.runtime;
    return true;
  }
  return false;
}

/// SLURM at the top of a pod or container whose slurmd made it there.
void parse_nested_slurm(Components at, CgroupPlace& place) {
  while (is_system_slice(at.current())) at.advance();
  parse_slurm(at, place);
}

/// From behind the pod's own directory on.
void parse_in_pod(Components at, CgroupPlace& place) {
  if (parse_container(kPodRuntimes, at.current(), place)) {
    at.advance();
  } else if (is_container_id(at.current())) {
    place.container_id = at.current();
    at.advance();
  }
  parse_nested_slurm(at, place);
}

/// "<pod slice>:<runtime>:<container>", which a runtime without the systemd driver makes of a
/// systemd path.
bool parse_colons(std::string_view component, CgroupPlace& place) {
  const std::size_t first = component.find(':');
  if (first == std::string_view::npos) return false;
  const std::size_t second = component.find(':', first + 1);
  if (second == std::string_view::npos) return false;
  const std::string_view uid = uid_of_pod_slice(component.substr(0, first));
  const std::string_view runtime = component.substr(first + 1, second - first - 1);
  const std::string_view id = component.substr(second + 1);
  if (uid.empty() || !is_container_id(id)) return false;
  place.pod_uid = uid;
  place.container_id = id;
  place.runtime = runtime == "cri-containerd" ? std::string_view("containerd")
                  : runtime == "crio"         ? std::string_view("crio")
                  : runtime == "docker"       ? std::string_view("docker")
                                              : std::string_view();
  return true;
}

/// At "kubepods", or at a name that follows it.
bool parse_kubepods(Components at, bool below, CgroupPlace& place) {
  if (at.current() == "kubepods") {
    at.advance();
  } else if (!below) {
    return false;
  }
  if (is_quality_of_service(at.current())) at.advance();
  std::string_view uid = at.current();
  if (!cut_prefix(uid, "pod") || !is_uid(uid)) return false;
  place.pod_uid = uid;
  at.advance();
  parse_in_pod(at, place);
  return true;
}

/// Services that make the cgroups of pods below their own.
bool is_runtime_service(std::string_view component) {
  constexpr std::array kServices = {
      std::string_view("containerd.service"),
      std::string_view("crio.service"),
      std::string_view("cri-o.service"),
      std::string_view("docker.service"),
      std::string_view("cri-docker.service"),
      std::string_view("kubelet.service"),
      std::string_view("k3s.service"),
      std::string_view("k3s-agent.service"),
      std::string_view("rke2-server.service"),
      std::string_view("rke2-agent.service"),
      std::string_view("k0sworker.service"),
      std::string_view("k0scontroller.service"),
      std::string_view("snap.microk8s.daemon-containerd.service"),
  };
  return std::find(kServices.begin(), kServices.end(), component) != kServices.end();
}

/// A container outside Kubernetes.
void parse_plain_container(Components at, CgroupPlace& place) {
  const std::string_view top = at.current();
  at.advance();
  if (top == "docker" && is_container_id(at.current())) {
    place.container_id = at.current();
    place.runtime = "docker";
  } else {
    parse_container(kPlainRuntimes, top == "libpod_parent" ? at.current() : top, place);
  }
}

CgroupPlace merge(CgroupPlace known, const CgroupPlace& more) {
  const auto agree = [](std::string_view a, std::string_view b) {
    return a.empty() || b.empty() || a == b;
  };
  const auto fill = [](std::string_view& into, std::string_view from) {
    if (into.empty()) into = from;
  };
  if (!agree(known.slurm_job, more.slurm_job) ||
      (known.slurm_uid >= 0 && more.slurm_uid >= 0 && known.slurm_uid != more.slurm_uid) ||
      (!agree(known.pod_uid, more.pod_uid) &&
       normal_pod_uid(known.pod_uid) != normal_pod_uid(more.pod_uid))) {
    known = {};
    known.contradictory = true;
    return known;
  }
  fill(known.slurm_job, more.slurm_job);
  fill(known.slurm_step, more.slurm_step);
  fill(known.slurm_task, more.slurm_task);
  if (known.slurm_uid < 0) known.slurm_uid = more.slurm_uid;
  fill(known.pod_uid, more.pod_uid);
  if (known.container_id.empty()) {
    known.container_id = more.container_id;
    known.runtime = more.runtime;
  }
  return known;
}

}  // namespace

CgroupPlace parse_cgroup_path(std::string_view path) {
  CgroupPlace place;
  if (!path.starts_with('/')) return place;
  cut_suffix(path, " (deleted)");
  Components at(path);
  bool beside_agent = false;
  while (at.current() == "..") {
    beside_agent = true;
    at.advance();
  }
  for (bool first = true;; first = false) {
    const std::string_view here = at.current();
    Components next = at;
    next.advance();
    if (const std::string_view uid = uid_of_pod_slice(here); !uid.empty()) {
      place.pod_uid = uid;
      parse_in_pod(next, place);
      return place;
    }
    if (parse_kubepods(at, first && beside_agent, place) || parse_colons(here, place) ||
        parse_slurm(at, place)) {
      return place;
    }
    const bool pass = is_system_slice(here) || is_runtime_service(here) ||
                      (here == "kubelet" && next.current() == "kubepods");
    if (!pass) {
      parse_plain_container(at, place);
      return place;
    }
    at = next;
  }
}

CgroupPlace parse_cgroup_text(std::string_view text) {
  CgroupPlace place;
  for (std::size_t end = 0; (end = text.find('\n')) != std::string_view::npos;
       text.remove_prefix(end + 1)) {
    const std::string_view line = text.substr(0, end);
    if (line.size() > kMaxLineBytes) continue;
    const std::size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    place = merge(place, parse_cgroup_path(line.substr(second + 1)));
    if (place.contradictory) break;
  }
  return place;
}

std::string normal_pod_uid(std::string_view text) {
  if (!is_uid(text)) return {};
  std::string uid(text);
  std::replace(uid.begin(), uid.end(), '_', '-');
  return uid;
}

}  // namespace ncclscope::agent
