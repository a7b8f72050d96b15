// SPDX-License-Identifier: Apache-2.0
// The configuration of a rank as one string of "key value" lines, which the parent puts into the
// rank's environment (kConfigVariable). Values without line breaks only. Private to simulation.cc
// and rank_main.cc.
#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "sim/simulation.h"

namespace ncclscope::sim {

inline constexpr const char* kConfigVariable = "NCCLSCOPE_SIM_CONFIG";

/// Calls visit(key, member) for every plain member that a rank needs, for writing and reading
/// alike.
template <typename Config, typename Visit>
void visit_config(Config& c, Visit&& visit) {
  visit("nodes", c.nodes);
  visit("gpus_per_node", c.gpus_per_node);
  visit("steps", c.steps);
  visit("seed", c.seed);
  visit("tuning.channels", c.tuning.channels);
  visit("tuning.p2p_channels", c.tuning.p2p_channels);
  visit("tuning.p2p_channels_per_peer", c.tuning.p2p_channels_per_peer);
  visit("tuning.ring_threads", c.tuning.ring_threads);
  visit("tuning.force_algo", c.tuning.force_algo);
  visit("tuning.force_proto", c.tuning.force_proto);
  visit("tuning.nvls", c.tuning.nvls);
  visit("tuning.collnet", c.tuning.collnet);
  visit("hardware.intra", c.hardware.intra_node_gbytes_per_s);
  visit("hardware.inter", c.hardware.inter_node_gbytes_per_s);
  visit("hardware.intra_hop", c.hardware.intra_hop_ns);
  visit("hardware.inter_hop", c.hardware.inter_hop_ns);
  visit("hardware.base", c.hardware.kernel_base_ns);
  visit("hardware.launch", c.hardware.launch_ns);
  visit("hardware.launch_to_start", c.hardware.launch_to_start_ns);
  visit("hardware.fixed", c.hardware.fixed_kernel_ns);
  visit("hardware.noise", c.hardware.noise);
  visit("hardware.first", c.hardware.first_operation_ns);
  visit("hardware.seed", c.hardware.seed);
  visit("hazards.stale_stop", c.hazards.stale_kernel_stop_every);
  visit("hazards.peer_wait", c.hazards.repeat_peer_wait);
  visit("hazards.step_start", c.hazards.repeat_step_start);
  visit("hazards.proxy_delay", c.hazards.proxy_delay_ns);
  visit("hazards.pxn", c.hazards.pxn);
  visit("hazards.net_plugin", c.hazards.net_plugin);
  visit("hazards.allgatherv", c.hazards.allgatherv);
  visit("model.compute", c.model.compute_ns);
  visit("model.noise", c.model.compute_noise);
  visit("model.scale", c.model.message_scale);
  visit("model.sync_every", c.model.sync_every);
  visit("gpu_clock_spread_ns", c.gpu_clock_spread_ns);
  visit("gpu_clock_drift_ppm", c.gpu_clock_drift_ppm);
  visit("log_nccl", c.log_nccl);
  visit("destroy", c.destroy);
}

/// What the parent decides beyond the configuration.
struct RankOrders {
  std::string world;  ///< name of the shared memory
  int rank = 0;
  int actor = -1;  ///< reserved slot of the rank's main thread
  std::int64_t end_time = kNever;
  std::int64_t hard_end = kNever;
};

std::string write_config(const SimulationConfig& config, const RankOrders& orders);
/// Error text, empty if understood.
std::string read_config(const std::string& text, SimulationConfig* config, RankOrders* orders);

}  // namespace ncclscope::sim
