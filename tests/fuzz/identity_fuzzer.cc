// SPDX-License-Identifier: Apache-2.0
// What is read from procfs and the pods' log directories, as any bytes: what the parsers return
// lies inside the text and is well-formed, and no bytes below a place that belongs to a user, a
// job, a pod or a container can make that place another one's.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "agent/identity/cgroup_text.h"
#include "agent/identity/pod_listing.h"
#include "agent/identity/proc_text.h"

namespace {

using ncclscope::agent::CgroupPlace;

void require(bool holds) {
  if (!holds) abort();
}

void check(const CgroupPlace& place, std::string_view text) {
  const auto inside = [&](std::string_view part) {
    require(part.empty() ||
            (part.data() >= text.data() && part.data() + part.size() <= text.data() + text.size()));
  };
  inside(place.slurm_job);
  inside(place.slurm_task);
  inside(place.pod_uid);
  inside(place.container_id);
  require(place.slurm_job.size() <= 10 &&
          place.slurm_job.find_first_not_of("0123456789") == std::string_view::npos);
  require(place.pod_uid.empty() || !ncclscope::agent::normal_pod_uid(place.pod_uid).empty());
  require(place.slurm_uid < 0 || !place.slurm_job.empty());
  require(!place.contradictory || place == CgroupPlace{.contradictory = true});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ncclscope::agent::parse_cgroup_path;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(ncclscope::agent::parse_cgroup_text(text), text);
  check(parse_cgroup_path(text), text);
  static_cast<void>(ncclscope::agent::parse_proc_stat(text));
  static_cast<void>(ncclscope::agent::maps_uid(text, 65534));
  std::string uid;
  if (const auto pod = ncclscope::agent::parse_pod_directory(text, uid)) {
    require(pod->pod_namespace.size() <= 63 && pod->name.size() <= 253 &&
            text == pod->pod_namespace + "_" + pod->name + "_" + uid);
  }

  const std::string below(text);
  require(parse_cgroup_path("/user.slice/" + below) == CgroupPlace{});
  require(parse_cgroup_path("/system.slice/some.service/" + below) == CgroupPlace{});
  const std::string job = "/system.slice/slurmstepd.scope/job_7/" + below;
  const CgroupPlace in_job = parse_cgroup_path(job);
  require(in_job.slurm_job == "7" && in_job.slurm_uid < 0 && in_job.pod_uid.empty());
  constexpr std::string_view kUid = "0d7ff6d7-1f9a-4c5e-9a55-3f8f6ed2b0c4";
  const std::string pod = "/kubepods/pod" + std::string(kUid) + "/" + below;
  require(parse_cgroup_path(pod).pod_uid == kUid);
  const std::string container = "/docker/0123456789abcdef/" + below;
  const CgroupPlace in_container = parse_cgroup_path(container);
  require(in_container.slurm_job.empty() && in_container.pod_uid.empty());
  return 0;
}
