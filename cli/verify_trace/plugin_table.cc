// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/plugin_table.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "proto/nccl/profiler.h"

namespace ncclscope::cli {
namespace {

using nlohmann::json;

void swallow_log(nccl::LogLevel, unsigned long, const char*, int, const char*, ...) {}

/// Reads a line's fields into descriptor members of whatever type they have.
class Fields {
 public:
  Fields(const TraceLine& line, DescriptorSource& source) : line_(line), source_(source) {}

  template <typename T>
  void get(const char* key, T& member) {
    const json& value = line_.fields.at(key);
    if (value.is_object()) return;  // marked as garbage: the random bytes stay
    if constexpr (std::is_same_v<T, const char*>) {
      member = value.is_null() ? nullptr : source_.intern(value.get_ref<const std::string&>());
    } else if constexpr (std::is_pointer_v<T>) {
      member = value.is_null() ? nullptr : DescriptorSource::address(value.get<std::int64_t>());
    } else {
      member = value.get<T>();
    }
  }

 private:
  const TraceLine& line_;
  DescriptorSource& source_;
};

template <typename Coll>
void fill_coll(Coll& c, Fields& f, void* parent_group) {
  if constexpr (requires { c.comm_hash; }) {
    f.get("name", c.name);
    f.get("commHash", c.comm_hash);
  }
  f.get("seqNumber", c.seq_number);
  f.get("func", c.func);
  f.get("sendBuff", c.send_buff);
  f.get("recvBuff", c.recv_buff);
  f.get("count", c.count);
  f.get("root", c.root);
  f.get("datatype", c.datatype);
  if constexpr (requires { c.op; }) f.get("op", c.op);
  if constexpr (requires { c.traffic_bytes; }) f.get("trafficBytes", c.traffic_bytes);
  if constexpr (requires { c.n_max_channels; }) f.get("nMaxChannels", c.n_max_channels);
  if constexpr (requires { c.n_channels; }) f.get("nChannels", c.n_channels);
  f.get("nWarps", c.n_warps);
  f.get("algo", c.algo);
  f.get("proto", c.proto);
  if constexpr (requires { c.is_collnet; }) {
    f.get("isCollnet", c.is_collnet);
    f.get("isNvls", c.is_nvls);
  }
  if constexpr (requires { c.parent_group; }) c.parent_group = parent_group;
}

template <typename P2p>
void fill_p2p(P2p& p, Fields& f, void* parent_group) {
  if constexpr (requires { p.comm_hash; }) {
    f.get("name", p.name);
    f.get("commHash", p.comm_hash);
  }
  f.get("func", p.func);
  f.get("buff", p.buff);
  f.get("datatype", p.datatype);
  f.get("count", p.count);
  f.get("peer", p.peer);
  if constexpr (requires { p.n_channels; }) f.get("nChannels", p.n_channels);
  if constexpr (requires { p.parent_group; }) p.parent_group = parent_group;
}

template <typename Descr>
void fill_api(Descr& d, std::uint32_t type, Fields& f) {
  switch (type) {
    case nccl::kGroupApi:
      f.get("graphCaptured", d.group_api.graph_captured);
      f.get("groupDepth", d.group_api.group_depth);
      break;
    case nccl::kCollApi:
      f.get("func", d.coll_api.func);
      f.get("count", d.coll_api.count);
      f.get("datatype", d.coll_api.datatype);
      f.get("root", d.coll_api.root);
      f.get("stream", d.coll_api.stream);
      f.get("graphCaptured", d.coll_api.graph_captured);
      break;
    case nccl::kP2pApi:
      f.get("func", d.p2p_api.func);
      f.get("count", d.p2p_api.count);
      f.get("datatype", d.p2p_api.datatype);
      f.get("stream", d.p2p_api.stream);
      f.get("graphCaptured", d.p2p_api.graph_captured);
      break;
    case nccl::kKernelLaunch:
      f.get("stream", d.kernel_launch.stream);
      break;
    default:
      break;
  }
}

template <typename Descr>
void fill_copy_engine(Descr& d, std::uint32_t type, Fields& f) {
  switch (type) {
    case nccl::kCeColl:
      f.get("seqNumber", d.ce_coll.seq_number);
      f.get("func", d.ce_coll.func);
      f.get("sendBuff", d.ce_coll.send_buff);
      f.get("recvBuff", d.ce_coll.recv_buff);
      f.get("count", d.ce_coll.count);
      f.get("root", d.ce_coll.root);
      f.get("datatype", d.ce_coll.datatype);
      f.get("syncStrategy", d.ce_coll.sync_strategy);
      f.get("intraBatchSync", d.ce_coll.intra_batch_sync);
      f.get("batchSize", d.ce_coll.batch_size);
      f.get("numBatches", d.ce_coll.num_batches);
      f.get("ceSeqNum", d.ce_coll.ce_seq_num);
      f.get("stream", d.ce_coll.stream);
      break;
    case nccl::kCeSync:
      f.get("isComplete", d.ce_sync.is_complete);
      f.get("nRanks", d.ce_sync.n_ranks);
      break;
    case nccl::kCeBatch:
      f.get("numOps", d.ce_batch.num_ops);
      f.get("totalBytes", d.ce_batch.total_bytes);
      f.get("useIntraSync", d.ce_batch.use_intra_sync);
      break;
    default:
      break;
  }
}

template <typename Table, typename Descr, typename Args>
class TableOf final : public PluginTable {
 public:
  TableOf(void* symbol, bool native, DescriptorSource& source)
      : table_(static_cast<Table*>(symbol)), native_(native), source_(source) {}

  int init(void** context, int* mask, const TraceLine& line) override {
    if constexpr (std::is_same_v<decltype(table_->init), nccl::InitV1>) {
      return table_->init(context, mask);
    } else {
      const json& f = line.fields;
      const std::uint64_t id = std::stoull(f.at("commId").get<std::string>(), nullptr, 16);
      const json& name_field = f.at("commName");
      const char* name =
          name_field.is_null() ? nullptr : source_.intern(name_field.get<std::string>());
      const int nodes = f.at("nNodes").get<int>();
      const int ranks = f.at("nranks").get<int>();
      const int rank = f.at("rank").get<int>();
      if constexpr (std::is_same_v<decltype(table_->init), nccl::InitV4>) {
        return table_->init(context, mask, name, id, nodes, ranks, rank, &swallow_log);
      } else {
        return table_->init(context, id, mask, name, nodes, ranks, rank, &swallow_log);
      }
    }
  }

  void start(void* context, void** handle, const TraceLine& line, void* parent,
             void* parent_group) override {
    // NCCL's adapters build the descriptor on their stack and fill only the member that is meant.
    alignas(Descr) std::byte bytes[sizeof(Descr)] = {};
    if (!native_) source_.fill_random(bytes, sizeof bytes);
    auto* d = new (bytes) Descr;
    if (!native_) source_.fill_random(bytes, sizeof bytes);
    if constexpr (sizeof(d->type) == 1)
      source_.fill_random(bytes + 1, offsetof(Descr, parent_obj) - 1);
    d->type = static_cast<decltype(d->type)>(line.type);
    d->parent_obj = parent;
    d->rank = line.fields.at("rank").get<std::int32_t>();
    Fields f(line, source_);
    switch (line.type) {
      case nccl::kGroup:
      case nccl::kProxyCtrl:
        break;
      case nccl::kColl:
        fill_coll(d->coll, f, parent_group);
        break;
      case nccl::kP2p:
        fill_p2p(d->p2p, f, parent_group);
        break;
      case nccl::kProxyOp:
        d->proxy_op.pid = source_.pid(line.fields.at("pid").get<std::int64_t>());
        f.get("channelId", d->proxy_op.channel_id);
        f.get("peer", d->proxy_op.peer);
        f.get("nSteps", d->proxy_op.n_steps);
        f.get("chunkSize", d->proxy_op.chunk_size);
        f.get("isSend", d->proxy_op.is_send);
        break;
      case nccl::kProxyStep:
        f.get("step", d->proxy_step.step);
        break;
      case nccl::kKernelCh:
        if constexpr (requires { d->kernel_ch; }) {
          f.get("channelId", d->kernel_ch.channel_id);
          if constexpr (requires { d->kernel_ch.p_timer; }) f.get("pTimer", d->kernel_ch.p_timer);
        }
        break;
      default:
        if constexpr (requires { d->group_api; }) fill_api(*d, line.type, f);
        if constexpr (requires { d->ce_coll; }) fill_copy_engine(*d, line.type, f);
        break;
    }
    table_->start_event(context, handle, d);
  }

  void stop(void* handle) override { table_->stop_event(handle); }

  void record(void* handle, const TraceLine& line) override {
    const auto state = static_cast<nccl::EventState>(line.state);
    const json& given = line.fields.at("args");
    if (given.is_null()) {
      table_->record_event_state(handle, state, nullptr);
      return;
    }
    Args args;
    source_.fill_random(&args, sizeof args);
    if (given.contains("raw")) {
      const auto raw = given.at("raw").get<std::uint64_t>();
      std::memcpy(&args, &raw, sizeof raw);
    }
    if constexpr (requires { args.proxy_step; }) {
      if (given.contains("transSize"))
        args.proxy_step.trans_size = given.at("transSize").get<std::size_t>();
      if (given.contains("pTimer"))
        args.kernel_ch.p_timer = given.at("pTimer").get<std::uint64_t>();
    } else {
      if (given.contains("transSize"))
        args.proxy_op.trans_size = given.at("transSize").get<std::size_t>();
      if (given.contains("steps")) args.proxy_op.steps = given.at("steps").get<std::int32_t>();
    }
    if (given.contains("appendedProxyOps")) {
      args.proxy_ctrl.appended_proxy_ops = given.at("appendedProxyOps").get<std::int32_t>();
    }
    table_->record_event_state(handle, state, &args);
  }

  void finalize(void* context) override { table_->finalize(context); }

 private:
  Table* table_;
  bool native_;
  DescriptorSource& source_;
};

}  // namespace

DescriptorSource::DescriptorSource(std::uint64_t seed, std::int64_t recorded_pid)
    : random_(seed), recorded_pid_(recorded_pid) {}

void DescriptorSource::fill_random(void* bytes, std::size_t count) {
  auto* out = static_cast<unsigned char*>(bytes);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t r = random_();
    std::memcpy(out + i, &r, count - i < 8 ? count - i : 8);
  }
}

const char* DescriptorSource::intern(const std::string& text) {
  return strings_.insert(text).first->c_str();
}

void* DescriptorSource::address(std::int64_t number) {
  if (number == 0) return nullptr;
  // An unmapped range: a plugin that follows a buffer or a stream crashes here, as it would in
  // life.
  return reinterpret_cast<void*>(std::uintptr_t{0x100000000000} +
                                 static_cast<std::uintptr_t>(number) * 4096);
}

std::int32_t DescriptorSource::pid(std::int64_t recorded) const {
  if (recorded == recorded_pid_) return static_cast<std::int32_t>(getpid());
  const auto other = static_cast<std::int32_t>(recorded);
  return other == static_cast<std::int32_t>(getpid()) ? other + 1 : other;
}

std::unique_ptr<PluginTable> make_plugin_table(int version, void* symbol, bool native,
                                               DescriptorSource& source) {
  using namespace nccl;  // NOLINT(google-build-using-namespace)
  switch (version) {
    case 1:
      return std::make_unique<TableOf<ProfilerV1, DescrV1, StateArgsV1>>(symbol, native, source);
    case 2:
      return std::make_unique<TableOf<ProfilerV2, DescrV2, StateArgsV2>>(symbol, native, source);
    case 3:
      return std::make_unique<TableOf<ProfilerV3, DescrV3, StateArgsV3>>(symbol, native, source);
    case 4:
      return std::make_unique<TableOf<ProfilerV4, DescrV4, StateArgsV4>>(symbol, native, source);
    case 5:
      return std::make_unique<TableOf<ProfilerV5, DescrV5, StateArgsV5>>(symbol, native, source);
    case 6:
      return std::make_unique<TableOf<ProfilerV6, DescrV6, StateArgsV6>>(symbol, native, source);
    case 7:
      return std::make_unique<TableOf<ProfilerV7, DescrV7, StateArgsV7>>(symbol, native, source);
    default:
      throw std::runtime_error("interface version " + std::to_string(version) +
                               " is not one of 1 to 7");
  }
}

}  // namespace ncclscope::cli
