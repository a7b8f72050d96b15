// SPDX-License-Identifier: Apache-2.0
//
// Names are cut into words; known words stand for dimensions.
#include "agent/aggregate/dimension.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kBulkBytes = 64 * 1024;
constexpr std::uint64_t kTinyBytes = 4 * 1024;

enum Word : unsigned {
  kTensor = 1,
  kPipeline = 2,
  kData = 4,
  kExpert = 8,
  kContext = 16,
  kModel = 32,
  kNone = 64
};

struct KnownWord {
  std::string_view text;
  unsigned meaning;
};
constexpr std::array kWords = {
    KnownWord{"tp", kTensor},         KnownWord{"tensor", kTensor},
    KnownWord{"etp", kTensor},        KnownWord{"pp", kPipeline},
    KnownWord{"pipeline", kPipeline}, KnownWord{"pipe", kPipeline},
    KnownWord{"dp", kData},           KnownWord{"data", kData},
    KnownWord{"ddp", kData},          KnownWord{"fsdp", kData},
    KnownWord{"hsdp", kData},         KnownWord{"edp", kData},
    KnownWord{"efsdp", kData},        KnownWord{"replicate", kData},
    KnownWord{"optimizer", kData},  // instances of the distributed optimizer
    KnownWord{"ep", kExpert},         KnownWord{"expert", kExpert},
    KnownWord{"experts", kExpert},    KnownWord{"cp", kContext},
    KnownWord{"dcp", kContext},       KnownWord{"context", kContext},
    KnownWord{"sp", kContext},        KnownWord{"ulysses", kContext},
    KnownWord{"mp", kModel},          KnownWord{"model", kModel},
    KnownWord{"embedding", kNone},    KnownWord{"embd", kNone},
    KnownWord{"amax", kNone},
};

unsigned meaning_of(std::string_view word) {
  while (!word.empty() && std::isdigit(static_cast<unsigned char>(word.back())) != 0) {
    word.remove_suffix(1);
  }
  const auto known = std::find_if(kWords.begin(), kWords.end(),
                                  [&](const KnownWord& k) { return k.text == word; });
  return known != kWords.end() ? known->meaning : 0;
}

/// All that the words of a name stand for.
unsigned meanings(std::string_view name) {
  unsigned all = 0;
  std::string word;
  bool lower_before = false;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    const bool starts_word = std::isupper(u) != 0 && lower_before;
    if (std::isalnum(u) == 0 || starts_word) {
      all |= meaning_of(word);
      word.clear();
    }
    if (std::isalnum(u) != 0) word.push_back(static_cast<char>(std::tolower(u)));
    lower_before = std::islower(u) != 0;
  }
  return all | meaning_of(word);
}

struct Sizes {
  std::size_t each_step = 0;  // sizes of reductions that come in most steps
  double share = 0;           // of the bulk collectives that have one of them
  double largest_share = 0;   // of the most frequent one
};

Sizes sizes_of(const CommunicatorUse& use, double steps) {
  Sizes out;
  const auto all = static_cast<double>(use.bulk());
  if (all == 0) return out;
  for (const CommunicatorUse::Size& size : use.sizes) {
    const auto count = static_cast<double>(size.count);
    out.largest_share = std::max(out.largest_share, count / all);
    if (count < 0.75 * steps) continue;
    if (size.function != model::Function::kAllGather) ++out.each_step;
    out.share += count / all;
  }
  return out;
}

bool is_pipeline(const CommunicatorUse& use) {
  const PeerPattern& p = use.peers;
  if (use.bulk() > 0 || use.all_to_alls > 0 || p.other || p.launches < 20) return false;
  // Rings go one way only: to the next, from the previous. Pipelines come back.
  if (use.nranks > 2) return (p.to_next && p.from_next) || (p.to_previous && p.from_previous);
  return use.nranks == 2 && p.one_way * 5 >= p.launches;
}

}  // namespace

NamedDimension dimension_of_name(std::string_view name) {
  unsigned all = meanings(name);
  if (all == 0) return {};
  if ((all & kNone) != 0) return {true, {}};
  // "Model parallel" also goes with the others: TENSOR_MODEL_PARALLEL_GROUP.
  if (all != kModel) all &= ~unsigned{kModel};
  // Gradients are reduced over data and context together; experts have data and tensor parallelism
  // of their own.
  if (all == (kData | kContext) || all == (kData | kExpert)) all = kData;
  if (all == (kTensor | kExpert) && name.find("AND") == std::string_view::npos &&
      name.find("tp_ep") == std::string_view::npos &&
      name.find("ep_tp") == std::string_view::npos) {
    all = kTensor;
  }
  switch (all) {
    case kTensor:
      return {true, "tp"};
    case kPipeline:
      return {true, "pp"};
    case kData:
      return {true, "dp"};
    case kExpert:
      return {true, "ep"};
    case kContext:
      return {true, "cp"};
    case kModel:
    case kTensor | kPipeline:
      return {true, "mp"};
    default:
      return {true, {}};
  }
}

void PeerPattern::add_peer(std::int32_t rank, std::uint32_t nranks, std::int32_t peer,
                           bool is_send) {
  if (rank < 0 || peer < 0 || nranks < 2 || static_cast<std::uint32_t>(peer) >= nranks) {
    other = true;
    return;
  }
  const auto distance =
      (static_cast<std::uint32_t>(peer) + nranks - static_cast<std::uint32_t>(rank) % nranks) %
      nranks;
  const bool next = distance == 1;
  const bool previous = distance == nranks - 1;
  if (!next && !previous) other = true;
  if (is_send) {
    to_next |= next;
    to_previous |= previous;
  } else {
    from_next |= next;
    from_previous |= previous;
  }
}

void add_collectives(CommunicatorUse& use, model::Function function, std::uint64_t bytes,
                     std::uint64_t count) {
  if (bytes <= kTinyBytes) use.tiny += count;
  if (bytes < kBulkBytes) return;
  switch (function) {
    case model::Function::kAllReduce:
      use.bulk_all_reduces += count;
      break;
    case model::Function::kReduceScatter:
      use.bulk_reduce_scatters += count;
      break;
    case model::Function::kAllGather:
      use.bulk_all_gathers += count;
      break;
    default:
      return;
  }
  use.sizes.push_back({function, bytes, count});
}

std::vector<std::string_view> infer_dimensions(std::span<const CommunicatorUse> uses,
                                               double steps) {
  std::vector<std::string_view> out(uses.size());
  if (steps < kMinSteps) return out;
  const auto is_bulk = [&](const CommunicatorUse& use) {
    return use.nranks > 1 && static_cast<double>(use.bulk()) >= 0.75 * steps;
  };
  const auto bulk_users = std::count_if(uses.begin(), uses.end(), is_bulk);
  const auto most_others = [&](std::size_t i) {
    std::uint64_t most = 0;
    for (std::size_t k = 0; k < uses.size(); ++k) {
      if (k != i) most = std::max(most, uses[k].bulk());
    }
    return most;
  };
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const CommunicatorUse& use = uses[i];
    if (is_pipeline(use)) {
      out[i] = "pp";
      continue;
    }
    if (use.all_to_alls >= 16 && use.uneven_all_to_alls * 2 >= use.all_to_alls && use.bulk() == 0) {
      out[i] = "ep";
      continue;
    }
    if (!is_bulk(use) || use.all_to_alls > 0 || use.peers.launches > 0) continue;
    const Sizes sizes = sizes_of(use, steps);
    const std::uint64_t others = most_others(i);
    // Activations: the same all-reduce many times a step, inside a node, beside a communicator that
    // reduces gradients far less often.
    const bool only_all_reduces = use.bulk() == use.bulk_all_reduces;
    if (only_all_reduces && use.nnodes == 1 && sizes.largest_share >= 0.9 && others > 0 &&
        use.bulk() >= 4 * others && static_cast<double>(use.bulk()) >= 8 * steps) {
      out[i] = "tp";
      continue;
    }
    // Gradients: buckets or layers of several sizes, the same ones in every step.
    const bool reduces = use.bulk_all_reduces + use.bulk_reduce_scatters > 0;
    const bool lone = bulk_users == 1;
    const std::size_t wanted = lone && only_all_reduces ? 3 : 2;
    if (reduces && sizes.each_step >= wanted && sizes.share >= 0.8 &&
        (lone || use.bulk() * 4 <= others)) {
      out[i] = "dp";
    }
  }
  return out;
}

}  // namespace ncclscope::agent
