// SPDX-License-Identifier: Apache-2.0
// The planner: see planner.h. The rules reproduce what recordings of real host code show (channels,
// warps, chunk sizes, bytes of each transfer); where nothing was recorded (LL, LL128, tree, NVLS)
// they are plausible rather than exact.
#include "sim/planner.h"

#include <algorithm>
#include <array>
#include <bit>

namespace ncclscope::sim {
namespace {

constexpr std::size_t kThreadThreshold = 64;  // bytes per thread, SIMPLE
constexpr int kWarp = 32;
constexpr int kBufferSteps = 8;

std::size_t div_up(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}
std::size_t align_up(std::size_t a, std::size_t b) {
  return div_up(a, b) * b;
}

/// NCCL sorts by traffic in bins of four per power of two above 1 KiB.
int size_bin(std::size_t traffic) {
  const std::size_t units = traffic >> 10;
  if (units < 4) return static_cast<int>(units);
  const int exponent = static_cast<int>(std::bit_width(units)) - 1;
  return exponent * 4 + static_cast<int>((units >> (exponent - 2)) & 3);
}

std::size_t message_bytes(const Task& task, int n_ranks) {
  const bool scaled = task.func == Func::kAllGather || task.func == Func::kReduceScatter;
  return task.bytes * (scaled ? static_cast<std::size_t>(n_ranks) : 1);
}

void choose_algorithm(Task* task, std::size_t total_bytes, const CommShape& shape,
                      const Tuning& tuning) {
  task->algo = Algo::kRing;
  task->proto = Proto::kSimple;
  const bool all_reduce = task->func == Func::kAllReduce;
  if (tuning.force_algo >= 0) {
    task->algo = static_cast<Algo>(tuning.force_algo);
  } else if (tuning.collnet && all_reduce && shape.n_nodes > 1 && total_bytes >= (64u << 10)) {
    task->algo = Algo::kCollnetChain;
  } else if (tuning.nvls && shape.n_nodes == 1 && total_bytes >= (1u << 20) &&
             (all_reduce || task->func == Func::kAllGather || task->func == Func::kReduceScatter)) {
    task->algo = Algo::kNvls;
  } else if (all_reduce && shape.n_nodes > 1 && total_bytes < (4u << 20)) {
    task->algo = Algo::kTree;
  }
  if (tuning.force_proto >= 0) {
    task->proto = static_cast<Proto>(tuning.force_proto);
  } else if (task->algo == Algo::kRing || task->algo == Algo::kTree) {
    if (total_bytes <= (16u << 10)) {
      task->proto = Proto::kLl;
    } else if (total_bytes <= (1u << 20)) {
      task->proto = Proto::kLl128;
    }
  }
  int channels = tuning.channels;
  std::size_t threads = static_cast<std::size_t>(tuning.ring_threads);
  const std::size_t threshold = task->proto == Proto::kLl ? 8 : kThreadThreshold;
  while (channels > 1 && total_bytes < static_cast<std::size_t>(channels) * threads * threshold) {
    --channels;
  }
  while (threads % 128 == 0 &&
         total_bytes < static_cast<std::size_t>(channels) * threads * threshold) {
    threads /= 2;
  }
  if (task->proto == Proto::kSimple) {
    threads += task->algo == Algo::kTree ? 4 * kWarp : kWarp;
  }
  task->n_warps = static_cast<int>(std::max<std::size_t>(threads, 3 * kWarp) / kWarp);
  task->max_channels = channels;
}

/// Bytes per element as the work item sees it: AllGather and Broadcast move bytes.
std::size_t work_element(const Task& task) {
  if (task.func == Func::kAllGather || task.func == Func::kBroadcast) return 1;
  return element_bytes(task.datatype);
}

struct Share {
  std::size_t lo;
  std::size_t mid;
  std::size_t hi;
};

/// Splits a chunk into slices as the copy primitives do and appends their sizes.
void append_slices(std::size_t elements, std::size_t element, int slices, std::size_t step_elements,
                   std::vector<std::uint32_t>* out) {
  const std::size_t wanted = div_up(elements, 16 * static_cast<std::size_t>(slices)) * 16;
  const std::size_t step_share = step_elements * static_cast<std::size_t>(slices) / 32;
  const std::size_t slice = std::max(wanted, step_share);
  std::size_t offset = 0;
  for (int i = 0; i < slices; ++i) {
    const std::size_t here = offset < elements ? std::min(slice, elements - offset) : 0;
    out->push_back(static_cast<std::uint32_t>(here * element));
    offset += here;
  }
}

/// Sizes of the transfers that rank `ring_index` sends over its channel's share of a ring
/// operation.
std::vector<std::uint32_t> ring_sends(const Task& task, std::size_t elements, int ring_index, int n,
                                      std::size_t step_bytes) {
  const std::size_t element = work_element(task);
  const std::size_t step_elements = step_bytes / element;
  std::vector<std::uint32_t> out;
  if (task.func == Func::kBroadcast || task.func == Func::kReduce) {
    std::size_t done = 0;
    do {
      const std::size_t here = std::min(elements - done, step_elements);
      append_slices(here, element, 1, step_elements, &out);
      done += here;
    } while (done < elements);
    return out;
  }
  const std::size_t chunk_limit = step_elements * 4;
  const auto ranks = static_cast<std::size_t>(n);
  std::size_t done = 0;
  while (done < elements) {
    const std::size_t remaining = elements - done;
    if (task.func == Func::kAllReduce) {
      std::size_t chunk = chunk_limit;
      if (remaining < chunk * ranks) {
        chunk = align_up(div_up(remaining, ranks), std::max<std::size_t>(1, 16 / element));
      }
      for (int step = 0; step < 2 * (n - 1); ++step) {
        const auto id = static_cast<std::size_t>((ring_index - 1 - step + 2 * n) % n);
        const std::size_t begin = id * chunk;
        const std::size_t here = begin < remaining ? std::min(chunk, remaining - begin) : 0;
        append_slices(here, element, 2, step_elements, &out);
      }
      done += chunk * ranks;
    } else {
      const std::size_t here = std::min(chunk_limit, remaining);
      for (int step = 0; step < n - 1; ++step) append_slices(here, element, 2, step_elements, &out);
      done += here;
    }
  }
  return out;
}

void add_net_ops(Task* task, const Share& share, const CommShape& shape, const Tuning& tuning) {
  const int n = shape.n_ranks;
  if (shape.n_nodes < 2 || n < 2) return;
  const int next = (shape.rank + 1) % n;
  const int previous = (shape.rank + n - 1) % n;
  const auto node = [&](int r) { return shape.node_of_rank[static_cast<std::size_t>(r)]; };
  bool recv = node(previous) != node(shape.rank);
  bool send = node(next) != node(shape.rank);
  const bool chunked = task->func == Func::kAllReduce || task->func == Func::kAllGather ||
                       task->func == Func::kReduceScatter;
  if (task->func == Func::kBroadcast) {
    recv = recv && shape.rank != task->root;
    send = send && next != task->root;
  } else if (task->func == Func::kReduce) {
    // The chain ends at the root: nobody sends out of it, and the rank after it starts the chain.
    send = send && shape.rank != task->root;
    recv = recv && previous != task->root;
  }
  const std::size_t step_bytes = tuning.buffer_bytes / kBufferSteps;
  const std::size_t element = work_element(*task);
  const std::size_t step_elements = step_bytes / element;
  const int slices = chunked ? 2 : 1;
  for (int i = 0; i < task->n_channels; ++i) {
    std::size_t elements = share.mid;
    if (i == 0) {
      elements = share.lo;
    } else if (i == task->n_channels - 1) {
      elements = share.hi;
    }
    for (const bool sending : {false, true}) {
      if (!(sending ? send : recv)) continue;
      NetOp op;
      op.channel = task->channel_lo + i;
      op.peer = sending ? next : previous;
      op.send = sending;
      op.chunk_bytes = static_cast<int>(step_elements * element *
                                        (chunked ? 8u : 1u));  // four steps, two per slice
      op.slices_per_chunk = slices;
      op.depth = chunked ? 4 : kBufferSteps;
      op.bytes = ring_sends(*task, elements, sending ? shape.rank : previous, n, step_bytes);
      task->net_ops.push_back(std::move(op));
    }
  }
}

std::uint32_t reverse_bits(std::uint32_t value, int bits) {
  std::uint32_t out = 0;
  for (int i = 0; i < bits; ++i) out |= ((value >> i) & 1u) << (bits - 1 - i);
  return out;
}

}  // namespace

const char* func_name(Func func) {
  constexpr std::array<const char*, 11> kNames = {
      "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
      "Send",      "Recv",   "AlltoAll",  "Gather",        "Scatter"};
  return kNames[static_cast<std::size_t>(func)];
}

std::size_t element_bytes(nccl::Datatype datatype) {
  return nccl::kDatatypes[datatype].bytes;
}

int traffic_per_byte(Func func, int n_ranks) {
  switch (func) {
    case Func::kAllReduce:
      return 2;
    case Func::kAllGather:
    case Func::kReduceScatter:
      return n_ranks;
    default:
      return 1;
  }
}

std::vector<TaskPtr> plan_collectives(std::vector<TaskPtr> tasks, const CommShape& shape,
                                      const Tuning& tuning) {
  for (const TaskPtr& task : tasks) {
    task->bytes = task->count * element_bytes(task->datatype);
    task->traffic =
        task->bytes * static_cast<std::size_t>(traffic_per_byte(task->func, shape.n_ranks));
  }
  // Large to small, the latest of equals first.
  std::reverse(tasks.begin(), tasks.end());
  std::stable_sort(tasks.begin(), tasks.end(), [](const TaskPtr& a, const TaskPtr& b) {
    return size_bin(a->traffic) > size_bin(b->traffic);
  });
  // One list per function and type, in order of first sight; each list is built from its end.
  struct List {
    Func func;
    nccl::Datatype datatype;
    std::vector<TaskPtr> tasks;
  };
  std::vector<List> lists;
  for (const TaskPtr& task : tasks) {
    auto list = std::find_if(lists.begin(), lists.end(), [&](const List& l) {
      const bool moves_bytes = task->func == Func::kAllGather || task->func == Func::kBroadcast;
      return l.func == task->func && (moves_bytes || l.datatype == task->datatype);
    });
    if (list == lists.end()) {
      lists.push_back({task->func, task->datatype, {}});
      list = lists.end() - 1;
    }
    list->tasks.insert(list->tasks.begin(), task);
  }
  std::vector<TaskPtr> ordered;
  for (const List& list : lists) {
    for (std::size_t i = 0; i < list.tasks.size();) {
      // Tasks within a factor of four are tuned as one.
      std::size_t total = 0;
      std::size_t end = i;
      while (end < list.tasks.size() &&
             (end == i || list.tasks[end]->traffic < 4 * list.tasks[i]->traffic)) {
        total += message_bytes(*list.tasks[end], shape.n_ranks);
        ++end;
      }
      Task sample = *list.tasks[i];
      choose_algorithm(&sample, total, shape, tuning);
      for (; i < end; ++i) {
        Task& task = *list.tasks[i];
        task.algo = sample.algo;
        task.proto = sample.proto;
        task.n_warps = sample.n_warps;
        task.max_channels = sample.max_channels;
        ordered.push_back(list.tasks[i]);
      }
    }
  }
  // Spread over channels.
  std::size_t traffic = 0;
  int wanted = 0;
  for (const TaskPtr& task : ordered) {
    traffic += std::max(tuning.least_channel_traffic, task->traffic);
    wanted = std::min(tuning.channels, wanted + task->max_channels);
  }
  const std::size_t per_channel = std::max(
      tuning.least_channel_traffic, wanted > 0 ? traffic / static_cast<std::size_t>(wanted) : 0);
  int channel = 0;
  std::size_t filled = 0;
  int batch = -1;
  Func batch_func = Func::kAllReduce;
  nccl::Datatype batch_type = nccl::kFloat32;
  for (const TaskPtr& pointer : ordered) {
    Task& task = *pointer;
    if (batch < 0 || task.func != batch_func ||
        (task.datatype != batch_type && work_element(task) != 1)) {
      ++batch;
      batch_func = task.func;
      batch_type = task.datatype;
    }
    task.batch = batch;
    task.flow = task.func == Func::kBroadcast ? Flow::kChainFromRoot
                : task.func == Func::kReduce  ? Flow::kChainToRoot
                                              : Flow::kRing;
    const std::size_t element = work_element(task);
    const std::size_t elements = task.bytes / element;
    if (task.algo == Algo::kCollnetChain || task.algo == Algo::kCollnetDirect) {
      // This path never fills in the number of channels, though channels report.
      task.channel_lo = 0;
      task.n_channels = 0;
      for (int c = 0; c < task.max_channels; ++c) task.channels.push_back(c);
      continue;
    }
    if (task.algo == Algo::kNvls || task.algo == Algo::kNvlsTree) {
      task.channel_lo = 0;
      task.n_channels = task.max_channels;
      for (int c = 0; c < task.max_channels; ++c) task.channels.push_back(c);
      continue;
    }
    std::size_t per_byte = static_cast<std::size_t>(traffic_per_byte(task.func, shape.n_ranks));
    if (task.proto == Proto::kLl) per_byte *= 4;
    const std::size_t cell = div_up(div_up(tuning.least_channel_traffic, per_byte), 16) * 16;
    const std::size_t cell_elements = cell / element;
    const std::size_t cell_traffic = cell * per_byte;
    const std::size_t cells = div_up(elements * element, cell);
    std::size_t cells_per_channel = std::min(cells, div_up(per_channel, cell_traffic));
    std::size_t lo = cells;
    if (channel + 1 != tuning.channels) {
      lo = std::min(cells, filled < per_channel ? div_up(per_channel - filled, cell_traffic) : 0);
    }
    std::size_t mid_channels = cells_per_channel > 0 ? (cells - lo) / cells_per_channel : 0;
    std::size_t hi = cells_per_channel > 0 ? (cells - lo) % cells_per_channel : 0;
    const std::size_t used = (lo > 0 ? 1 : 0) + mid_channels + (hi > 0 ? 1 : 0);
    if (static_cast<std::size_t>(channel) + used > static_cast<std::size_t>(tuning.channels)) {
      const int middle = tuning.channels - channel - 2;
      mid_channels = middle > 0 ? static_cast<std::size_t>(middle) : 0;
      cells_per_channel = (cells - lo) / (mid_channels + 1);
      hi = cells_per_channel + (cells - lo) % (mid_channels + 1);
    }
    if (hi == 0 && mid_channels != 0) {
      hi = cells_per_channel;
      --mid_channels;
    }
    if (lo == 0) {
      ++channel;
      if (mid_channels == 0) {
        lo = hi;
        hi = 0;
      } else {
        lo = cells_per_channel;
        --mid_channels;
      }
    }
    Share share{lo * cell_elements, mid_channels > 0 ? cells_per_channel * cell_elements : 0,
                hi * cell_elements};
    const std::size_t excess = cells * cell_elements - elements;
    (share.hi != 0 ? share.hi : share.lo) -= excess;
    task.channel_lo = channel;
    task.n_channels = 1 + static_cast<int>(mid_channels) + (hi != 0 ? 1 : 0);
    for (int c = 0; c < task.n_channels; ++c) task.channels.push_back(channel + c);
    add_net_ops(&task, share, shape, tuning);
    if (hi != 0) {
      channel += task.n_channels - 1;
      filled = hi * cell_traffic;
    } else if (mid_channels != 0) {
      channel += task.n_channels - 1;
      filled = cells_per_channel * cell_traffic;
    } else {
      filled += lo * cell_traffic;
    }
    if (filled >= per_channel && channel + 1 != tuning.channels) {
      ++channel;
      filled = 0;
    }
  }
  return ordered;
}

std::vector<TaskPtr> plan_p2p(const std::vector<TaskPtr>& tasks, const CommShape& shape,
                              const Tuning& tuning) {
  const int n = shape.n_ranks;
  std::vector<TaskPtr> ordered;
  std::vector<TaskPtr> left = tasks;
  const auto take = [&](bool send, int peer) -> TaskPtr {
    for (auto it = left.begin(); it != left.end(); ++it) {
      if (((*it)->func == Func::kSend) == send && (*it)->peer == peer) {
        TaskPtr found = *it;
        left.erase(it);
        return found;
      }
    }
    return nullptr;
  };
  const int local = std::max(1, shape.max_local_ranks);
  const bool regular = shape.n_nodes * local == n;
  while (!left.empty()) {
    for (int round = 0; round < n && !left.empty(); ++round) {
      int to = (shape.rank + round) % n;
      int from = (shape.rank + n - round) % n;
      if (regular && shape.n_nodes > 1) {
        // Rounds go over nodes first, then over the ranks of a node.
        const int node = shape.rank / local;
        const int index = shape.rank % local;
        const int node_delta = round / local;
        const int index_delta = round % local;
        to = (node + node_delta) % shape.n_nodes * local + (index + index_delta) % local;
        from = (node + shape.n_nodes - node_delta) % shape.n_nodes * local +
               (index + local - index_delta) % local;
      }
      // A round's own peers first; a send whose receive belongs elsewhere stands alone.
      TaskPtr send = take(true, to);
      TaskPtr recv = take(false, from);
      int base = round;
      if (shape.n_nodes > 1)
        base = round / local * static_cast<int>(div_up(static_cast<std::size_t>(local), 8)) +
               round % local / 8;
      const auto channels = static_cast<std::uint32_t>(
          std::bit_floor(static_cast<std::uint32_t>(std::max(1, tuning.p2p_channels))));
      const int bits = static_cast<int>(std::bit_width(channels)) - 1;
      const std::uint32_t first =
          reverse_bits(static_cast<std::uint32_t>(base) & (channels - 1), bits);
      for (const TaskPtr& task : {send, recv}) {
        if (task == nullptr) continue;
        task->is_p2p = true;
        task->bytes = task->count * element_bytes(task->datatype);
        task->flow = Flow::kPair;
        task->p2p_round = round;
        const bool self = task->peer == shape.rank;
        const bool network = !self && shape.node_of_rank[static_cast<std::size_t>(task->peer)] !=
                                          shape.node_of_rank[static_cast<std::size_t>(shape.rank)];
        std::size_t step = tuning.buffer_bytes / kBufferSteps;
        if (network) step = tuning.p2p_net_chunk;
        const std::size_t least = shape.n_nodes > 1 ? step / 2 : step / 8;
        const std::size_t most = shape.n_nodes > 1 && tuning.p2p_net_parts_grow ? step : step * 32;
        int most_channels = tuning.p2p_channels_per_peer;
        int few = most_channels;
        while (few * n > tuning.p2p_channels && few > 1) few /= 2;
        int parts = std::max(1, std::min<int>(few, static_cast<int>(div_up(task->bytes, least))));
        while (div_up(task->bytes, static_cast<std::size_t>(parts)) > most &&
               parts <= most_channels / 2) {
          parts *= 2;
        }
        if (self) parts = 1;
        task->n_channels = parts;
        task->counted_by_host = !self;
        const std::size_t part =
            align_up(div_up(task->bytes, static_cast<std::size_t>(parts)), 4096);
        struct Part {
          int channel;
          std::size_t bytes;
        };
        std::vector<Part> split;
        for (int p = 0; p < parts; ++p) {
          const std::uint32_t delta = reverse_bits(static_cast<std::uint32_t>(p), bits);
          const std::size_t begin = std::min(task->bytes, part * static_cast<std::size_t>(p));
          split.push_back({static_cast<int>((first + delta) & (channels - 1)),
                           std::min(task->bytes - begin, part)});
        }
        std::sort(split.begin(), split.end(),
                  [](const Part& a, const Part& b) { return a.channel < b.channel; });
        for (const Part& piece : split) {
          task->channels.push_back(piece.channel);
          if (!network) continue;
          NetOp op;
          op.channel = piece.channel;
          op.peer = task->peer;
          op.send = task->func == Func::kSend;
          std::size_t chunk = step;
          if (piece.bytes < step) {
            chunk = step / 4;
          } else if (piece.bytes < 8 * step) {
            chunk = step / 2;
          }
          op.chunk_bytes = static_cast<int>(chunk);
          std::size_t rest = piece.bytes;
          do {
            const std::size_t here = std::min(rest, chunk);
            op.bytes.push_back(static_cast<std::uint32_t>(here));
            rest -= here;
          } while (rest > 0);
          task->net_ops.push_back(std::move(op));
        }
        task->channel_lo = task->channels.front();
        ordered.push_back(task);
      }
      if (send != nullptr && recv != nullptr) {
        send->partner = recv;
        recv->partner = send;
      }
    }
  }
  return ordered;
}

}  // namespace ncclscope::sim
