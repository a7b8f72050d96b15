// SPDX-License-Identifier: Apache-2.0
#include "plugin/inspector/windows.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "plugin/inspector/files.h"
#include "proto/model/bandwidth.h"

namespace ncclscope::plugin::inspector {
namespace {

namespace mi = model::inspector;

/// FNV-1a.
struct Hash {
  std::uint64_t value = 0xCBF29CE484222325u;

  void add(std::uint64_t part) noexcept {
    for (unsigned byte = 0; byte < 8; ++byte)
      value = (value ^ ((part >> (8 * byte)) & 0xFFu)) * 0x100000001B3u;
  }
  void add(const char* text) noexcept {
    for (; *text != '\0'; ++text)
      value = (value ^ static_cast<unsigned char>(*text)) * 0x100000001B3u;
  }
};

std::string_view without_prefix(const char* uuid) noexcept {
  const std::string_view text = uuid;
  return text.starts_with("GPU-") ? text.substr(4) : text;
}

}  // namespace

bool Windows::Row::same_labels(const Row& o) const noexcept {
  return gpu == o.gpu && function == o.function && algorithm == o.algorithm &&
         protocol == o.protocol && size == o.size && nranks == o.nranks && nnodes == o.nnodes &&
         std::strcmp(name, o.name) == 0;
}

std::size_t Windows::gpu_of(const Options& options, const Writer& writer,
                            const Context& context) noexcept {
  for (std::size_t i = 0; i < gpu_count_; ++i) {
    if (gpus_[i].device == context.device && std::strcmp(gpus_[i].uuid, context.gpu_uuid) == 0 &&
        std::strcmp(gpus_[i].pci_bus_id, context.pci_bus_id) == 0)
      return i;
  }
  if (gpu_count_ == kMaxGpus) return kMaxGpus;
  Gpu& made = gpus_[gpu_count_];
  made = Gpu();
  made.device = context.device;
  std::memcpy(made.uuid, context.gpu_uuid, sizeof made.uuid);
  std::memcpy(made.pci_bus_id, context.pci_bus_id, sizeof made.pci_bus_id);
  made.index = index_on_node(context.pci_bus_id);
  // Where sysfs does not show GPUs, a process per GPU is what its launcher numbers.
  if (made.index < 0) made.index = options.local_rank >= 0 ? options.local_rank : context.device;
  const std::string_view uuid = without_prefix(made.uuid);
  if (uuid.empty()) {
    std::snprintf(made.file, sizeof made.file, "nccl_inspector_metrics_pid%d.prom", writer.pid);
  } else {
    std::snprintf(made.file, sizeof made.file, "nccl_inspector_metrics_%.*s.prom",
                  static_cast<int>(uuid.size()), uuid.data());
  }
  return gpu_count_++;
}

bool Windows::add(const Options& options, const Writer& writer, const Context& context,
                  const LineText& operation) noexcept {
  const std::size_t gpu = gpu_of(options, writer, context);
  if (gpu == kMaxGpus || operation.duration_ns == 0) return false;
  Row row;
  row.gpu = static_cast<std::uint8_t>(gpu);
  row.function = operation.function;
  if (!model::is_point_to_point(operation.function)) {
    row.algorithm = operation.algorithm;
    row.protocol = operation.protocol;
  }
  row.size = mi::size_range(mi::rank_bytes(operation.count, operation.datatype));
  row.nranks = context.text.nranks;
  row.nnodes = context.text.nnodes;
  TextBuffer name(row.name, sizeof row.name - 1);
  name.put_label(context.text.name[0] == '\0' ? mi::kUnknown : context.text.name);

  Hash hash;
  hash.add(std::uint64_t{row.gpu} | static_cast<std::uint64_t>(row.function) << 8 |
           static_cast<std::uint64_t>(row.algorithm) << 16 |
           static_cast<std::uint64_t>(row.protocol) << 24 | std::uint64_t{row.size.k} << 32 |
           std::uint64_t{row.size.unit} << 48);
  hash.add(std::uint64_t{row.nranks} | std::uint64_t{row.nnodes} << 32);
  hash.add(row.name);
  std::size_t place = hash.value % (2 * kMaxRows);
  while (table_[place] != 0 && !rows_[table_[place] - 1u].same_labels(row))
    place = (place + 1) % (2 * kMaxRows);
  if (table_[place] == 0) {
    if (row_count_ == kMaxRows) return false;
    rows_[row_count_++] = row;
    table_[place] = static_cast<std::uint16_t>(row_count_);
  }
  Row& sums = rows_[table_[place] - 1u];
  ++sums.operations;
  const auto ns = static_cast<double>(operation.duration_ns);
  sums.microseconds += ns / 1000;
  const std::uint64_t bytes = model::message_bytes(operation.function, operation.count,
                                                   operation.datatype, context.text.nranks);
  const double bandwidth =
      static_cast<double>(bytes) / ns * model::bus_factor(operation.function, context.text.nranks);
  if (bandwidth > 0) {
    ++sums.with_bandwidth;
    sums.logarithms += std::log(bandwidth);
  }
  return true;
}

bool Windows::put_text(TextBuffer& out, const Options& options, const Writer& writer,
                       std::size_t gpu) const noexcept {
  const auto family = [&](std::string_view name, std::string_view help, bool p2p, bool bandwidth) {
    bool announced = false;
    for (std::size_t i = 0; i < row_count_; ++i) {
      const Row& row = rows_[i];
      if (row.gpu != gpu || model::is_point_to_point(row.function) != p2p) continue;
      if (!announced) {
        out.put("# HELP ").put(name).put(" ").put(help).put("\n# TYPE ").put(name);
        out.put(" gauge\n");
        announced = true;
      }
      out.put(name).put("{version=\"").put(mi::kPrometheusVersion);
      out.put("\",cluster=\"").put_label(options.cluster);
      out.put("\",slurm_job_id=\"").put_label(options.job_id);
      out.put("\",node=\"").put_label(writer.host).put("\",hostname=\"").put_label(writer.host);
      out.put("\",gpu=\"");
      if (gpus_[gpu].index < 0) {
        out.put(mi::kUnknown);
      } else {
        out.put("GPU").put_signed(gpus_[gpu].index);
      }
      out.put("\",comm_name=\"");
      out.put(row.name);
      out.put("\",n_nodes=\"").put(row.nnodes).put("\",nranks=\"").put(row.nranks);
      out.put(p2p ? "\",p2p_operation=\"" : "\",collective=\"").put(mi::name(row.function));
      out.put("\",message_size=\"").put(mi::size_text(row.size).view());
      if (!p2p) {
        out.put("\",algo_proto=\"").put(model::name(row.algorithm)).put("_");
        out.put(model::name(row.protocol));
      }
      const double value = !bandwidth ? row.microseconds / static_cast<double>(row.operations)
                           : row.with_bandwidth == 0
                               ? 0
                               : std::exp(row.logarithms / static_cast<double>(row.with_bandwidth));
      out.put("\"} ").put_short(value).put("\n");
    }
  };
  family(mi::kBusBandwidth, mi::kBusBandwidthHelp, false, true);
  family(mi::kExecutionTime, mi::kExecutionTimeHelp, false, false);
  family(mi::kP2pBusBandwidth, mi::kBusBandwidthHelp, true, true);
  family(mi::kP2pExecutionTime, mi::kExecutionTimeHelp, true, false);
  return !out.full();
}

void Windows::clear() noexcept {
  row_count_ = 0;
  std::memset(table_, 0, sizeof table_);
}

}  // namespace ncclscope::plugin::inspector
