// SPDX-License-Identifier: Apache-2.0
//
// A hostile tenant beside a victim: whatever it sends, and whenever, the victim's series are the
// same to the byte as without it, and what the hostile one gets shown is still a well-formed
// exposition.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "agent/export/text_writer.h"
#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

using testing::make_hello;
using testing::make_init;
using testing::Packet;
using testing::PacketBuilder;
using testing::Wire;
using wire::RecordType;
using wire::StringKey;

constexpr std::int64_t kVictim = 1000;
constexpr std::int64_t kAttacker = 2000;
constexpr const char* kVictimJob = "4711";
constexpr std::uint64_t kVictimHash = 0xabcdef;
constexpr std::uint64_t kVictimSession = 77;

/// Proves the victim's job, as the kernel does for SLURM jobs, and believes all others.
class Resolver final : public JobResolver {
 public:
  ProcessIdentity resolve(const PeerIdentity& peer, const HelloClaims& claims) override {
    ProcessIdentity identity = claims_.resolve(peer, claims);
    if (peer.uid == kVictim) identity.job.identity_source = "cgroup";
    return identity;
  }

 private:
  ClaimsResolver claims_{""};
};

/// An agent's inside with limits that are soon reached.
struct Node {
  Node()
      : aggregator(clock, resolver, gpus, tail, aggregator_options()),
        ingest(aggregator, clock, ingest_options()) {}

  static Aggregator::Options aggregator_options() {
    Aggregator::Options options;
    options.node = "n1";
    options.max_jobs = 64;
    options.jobs_per_principal = 16;
    options.max_communicators = 256;
    options.communicators_per_principal = 64;
    options.max_pending_items = 1024;
    return options;
  }
  static Ingest::Options ingest_options() {
    Ingest::Options options;
    options.max_sessions = 128;
    options.sessions_per_principal = 48;
    return options;
  }
  std::unique_ptr<Wire> connect(std::int64_t pid, std::int64_t uid, bool claimed = false) {
    return std::make_unique<Wire>(ingest, pid, uid, claimed);
  }
  std::string metrics() {
    aggregator.flush_all();
    return render_text(*aggregator.build(ingest.stats(), ingest.quotas().counts()), SelfStats{},
                       TextFormat::kPrometheus);
  }

  FakeClock clock;
  Resolver resolver;
  GpuTable gpus{"/nonexistent"};
  OperationTail tail{1000};
  Aggregator aggregator;
  Ingest ingest;
};

/// What the attacker holds between its actions.
struct Attack {
  Node& node;
  int step = 0;
  std::vector<std::unique_ptr<Wire>> wires{};
  std::uint64_t next = 1;  // for session ids and pids

  Wire& open(const testing::Strings& strings = {{StringKey::kSlurmJobId, "666"}},
             std::int64_t uid = kAttacker, bool claimed = false, std::uint64_t session = 0) {
    const std::uint64_t n = next++;
    wires.push_back(node.connect(static_cast<std::int64_t>(10'000 + n), uid, claimed));
    wires.back()->feed(PacketBuilder()
                           .hello(make_hello(session != 0 ? session : 1'000'000 + n), strings)
                           .finish());
    return *wires.back();
  }
  void feed(Wire& wire, const Packet& packet) const {
    if (!wire.over()) wire.feed(packet);
  }
};

/// The victim's life, in steps; `act` is called before each of them and after the last.
std::string life(const std::function<void(Attack&)>& act) {
  Node node;
  Attack attack{node};
  const auto interlude = [&] {
    if (act) act(attack);
    ++attack.step;
    node.clock.advance_ms(100);
    node.ingest.tick();
    node.aggregator.tick();
  };
  std::unique_ptr<Wire> ranks[2];
  std::uint64_t next[2] = {1, 1};
  const auto open = [&](int r) {
    ranks[r] = node.connect(100 + r, kVictim);
    EXPECT_TRUE(ranks[r]->feed(PacketBuilder()
                                   .hello(make_hello(kVictimSession + static_cast<unsigned>(r)),
                                          {{StringKey::kSlurmJobId, kVictimJob},
                                           {StringKey::kSlurmProcId, r == 0 ? "0" : "1"}})
                                   .finish()));
  };
  const auto init = [&](int r) {
    EXPECT_TRUE(ranks[r]->feed(
        PacketBuilder()
            .init(make_init(0, kVictimHash, r, 2),
                  {{StringKey::kCommunicatorName, "world"},
                   {StringKey::kGpuPciBusId, r == 0 ? "0000:3b:00.0" : "0000:86:00.0"}})
            .finish()));
  };
  const auto operations = [&](int r, std::uint16_t plan) {
    PacketBuilder packet;
    for (int i = 0; i < 5; ++i) packet.operation({.count = 1000, .plan = plan});
    packet.progress(0, node.clock.monotonic_ns(), 3, node.clock.monotonic_ns() - 1000);
    EXPECT_TRUE(ranks[r]->feed(packet.finish(next[r])));
    next[r] += 5;
  };
  interlude();
  for (int r : {0, 1}) open(r);
  interlude();
  for (int r : {0, 1}) init(r);
  interlude();
  for (int r : {0, 1}) operations(r, 0);
  interlude();
  for (int r : {0, 1}) operations(r, 7);  // the first half of a plan
  interlude();
  for (int r : {0, 1}) operations(r, 7);
  ranks[1]->disconnect();  // and comes back
  interlude();
  open(1);
  EXPECT_EQ(ranks[1]->last<wire::Welcome>(RecordType::kWelcome).highest_index, next[1] - 1);
  init(1);
  operations(1, 0);
  wire::NetworkPhases phases{};
  phases.is_send = 1;
  phases.bytes = 4096;
  phases.phase_ns[0] = 1000;
  EXPECT_TRUE(
      ranks[0]->feed(PacketBuilder().add(phases, RecordType::kNetworkPhases).finish(next[0])));
  wire::Books books{};
  books.seen = books.recorded = 15;
  books.time_ns = node.clock.monotonic_ns();
  EXPECT_TRUE(ranks[0]->feed(PacketBuilder().add(books, RecordType::kBooks).finish()));
  interlude();
  return node.metrics();
}

/// The samples that carry the victim's job id.
std::string of_victim(const std::string& text) {
  std::istringstream in(text);
  std::string out;
  const std::string label = std::string("job_id=\"") + kVictimJob + "\"";
  for (std::string line; std::getline(in, line);) {
    if (line.find(label) != std::string::npos) out += line + "\n";
  }
  return out;
}

/// Every line is a comment or a sample of a finite value, and no series comes twice.
void expect_well_formed(const std::string& text) {
  static const std::regex kSample(
      R"re([a-z0-9_]+(\{[a-z0-9_]+="([^"\\]|\\["\\n])*"(,[a-z0-9_]+="([^"\\]|\\["\\n])*")*\})? -?[0-9.]+(e[+-]?[0-9]+)?)re");
  std::istringstream in(text);
  std::set<std::string> series;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    ASSERT_TRUE(std::regex_match(line, kSample)) << line;
    ASSERT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << "twice: " << line;
    // Nothing that does not show, and nothing that turns the line around.
    for (const char* unseen : {"\xE2\x80\xAE", "\xE2\x80\x8B", "\xEF\xBB\xBF", "\xC2\xAD"}) {
      ASSERT_EQ(line.find(unseen), std::string::npos) << line;
    }
  }
}

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

template <typename Record>
Record all_ones() {
  Record record;
  std::memset(static_cast<void*>(&record), 0xFF, sizeof record);
  return record;
}

void flood(Attack& attack) {
  if (attack.step == 0) {
    attack.feed(attack.open(), PacketBuilder().init(make_init(0, 1, 0, 2)).finish());
  }
  for (std::uint64_t i = 0; i < 10; ++i) {
    attack.feed(*attack.wires[0], PacketBuilder().operations(500).finish(
                                      1 + 500 * (i + 10 * static_cast<unsigned>(attack.step))));
  }
}

void many_sessions(Attack& attack) {
  for (int i = 0; i < 300; ++i) {
    const std::string job = "job-" + std::to_string(attack.next);
    attack.open({{StringKey::kSlurmJobId, job}});
    if (i % 3 != 0) attack.wires.pop_back();
  }
}

void several_greedy_users(Attack& attack) {
  for (int i = 0; i < 100; ++i) {
    const std::string job = "job-" + std::to_string(attack.next);
    attack.feed(attack.open({{StringKey::kSlurmJobId, job}}, kAttacker + i % 5),
                PacketBuilder().init(make_init(0, attack.next, 0, 2)).finish());
  }
}

void many_communicators(Attack& attack) {
  Wire& wire = attack.open();
  for (std::uint16_t i = 0; i < 2000;) {
    PacketBuilder packet;
    for (int n = 0; n < 100; ++n, ++i) {
      packet.init(make_init(i, 1 + i + 10'000u * static_cast<unsigned>(attack.step), 0, 8));
      packet.operation({.communicator = i});
    }
    attack.feed(wire, packet.finish(1u + i));
  }
}

void identifiers_of_the_victim(Attack& attack) {
  for (const bool claimed : {false, true}) {
    for (std::uint64_t r = 0; r < 2; ++r) {
      Wire& wire = attack.open({{StringKey::kSlurmJobId, kVictimJob}}, kAttacker, claimed,
                               kVictimSession + r);
      attack.feed(wire, PacketBuilder()
                            .init(make_init(0, kVictimHash, static_cast<std::int32_t>(r), 2),
                                  {{StringKey::kCommunicatorName, "mine"},
                                   {StringKey::kGpuPciBusId, "0000:3b:00.0"}})
                            .operations(9)
                            .finalize(0)
                            .finish(1));
    }
  }
}

void hostile_strings(Attack& attack) {
  const std::string texts[] = {
      "a\"} 1\nncclscope_rank_state{job_id=\"4711\"",
      "back\\slash\\",
      "{}[]()",
      "\n\r\t\x01\x7F",
      std::string("nul\0nul", 7),
      "\xFF\xFE\xC0\x80\xED\xA0\x80\xF5\x80\x80\x80",
      "4711\xE2\x80\x8B",  // zero width
      "\xE2\x80\xAE"
      "1174",  // right to left
      "47\xC2\xAD"
      "11",  // soft hyphen
      "\xEF\xBB\xBF"
      "4711",  // byte order mark
      "\xF3\xA0\x81\xB4"
      "4711",  // tag
      std::string(128, 'x'),
      std::string(127, 'x') + "\xC3",
      "",
      " 4711",
      "4711~2000",
      "other",
      "unknown",
  };
  for (const std::string& text : texts) {
    testing::Strings strings;
    for (int key = 1; key <= 46; ++key) strings.emplace_back(static_cast<StringKey>(key), text);
    if (text.size() > 40) strings.resize(10);  // a record has 2,040 bytes
    attack.feed(attack.open(strings),
                PacketBuilder()
                    .init(make_init(0, kVictimHash, 0, 2), {{StringKey::kCommunicatorName, text},
                                                            {StringKey::kGpuPciBusId, text},
                                                            {StringKey::kGpuUuid, text}})
                    .operation()
                    .finish(1));
    // The job by its name alone.
    attack.open({{StringKey::kJobName, text}});
    attack.open({{StringKey::kPodNamespace, text}, {StringKey::kPodName, text}});
  }
}

void oversized_strings(Attack& attack) {
  for (const std::size_t lie : {std::size_t{200}, std::size_t{0xFFFF}}) {
    Packet packet = PacketBuilder()
                        .hello(make_hello(5), {{StringKey::kSlurmJobId, std::string(120, 'x')}})
                        .finish();
    // The string's length field lies behind frame header, Hello and its key.
    const auto bytes = static_cast<std::uint16_t>(lie);
    std::memcpy(packet.data() + sizeof(wire::FrameHeader) + sizeof(wire::Hello) + 2, &bytes, 2);
    attack.wires.push_back(attack.node.connect(1, kAttacker));
    EXPECT_FALSE(attack.wires.back()->feed(packet));
  }
}

void absurd_numbers(Attack& attack) {
  Wire& wire = attack.open({{StringKey::kSlurmJobId, "absurd"},
                            {StringKey::kRank, "-5"},
                            {StringKey::kLocalRank, "99999999999999999999"},
                            {StringKey::kSlurmRestartCount, "4294967295"}});
  std::uint16_t id = 0;
  PacketBuilder inits;
  for (const std::int32_t rank : {-5, -1, std::numeric_limits<std::int32_t>::min(),
                                  std::numeric_limits<std::int32_t>::max()}) {
    for (const std::uint32_t nranks : {0u, 1u << 24, 1u << 31, 0xFFFFFFFFu}) {
      inits.init(make_init(id, 50u + id, rank, nranks, nranks));
      ++id;
    }
  }
  wire::CommunicatorInit odd = all_ones<wire::CommunicatorInit>();
  odd.communicator = 99;
  odd.string_bytes = 0;
  inits.init(odd);
  attack.feed(wire, inits.finish());
  std::uint64_t index = 1;
  for (std::uint16_t c = 0; c < id; ++c) {
    PacketBuilder packet;
    for (const std::uint64_t count : {kHuge, std::uint64_t{1} << 63, std::uint64_t{1} << 47}) {
      for (const std::uint64_t duration : {kHuge, std::uint64_t{1}, std::uint64_t{0}}) {
        for (const std::uint64_t start : {kHuge, std::uint64_t{1} << 62, std::uint64_t{0}}) {
          for (const auto function :
               {model::Function::kAllGather, model::Function::kAllReduce, model::Function::kSend}) {
            packet.operation({.communicator = c,
                              .function = function,
                              .datatype = model::DataType::kFloat64,
                              .count = count,
                              .plan = static_cast<std::uint16_t>(count & 3),
                              .api_ns = start,
                              .gpu_start_ns = start,
                              .duration_ns = duration});
          }
        }
      }
    }
    for (int i = 0; i < 3; ++i) {
      auto operation = all_ones<wire::Operation>();
      operation.communicator = c;
      packet.add(operation, RecordType::kOperation);
      auto phases = all_ones<wire::NetworkPhases>();
      phases.communicator = i == 0 ? wire::kNoCommunicator : c;
      packet.add(phases, RecordType::kNetworkPhases);
    }
    auto progress = all_ones<wire::Progress>();
    progress.communicator = c;
    packet.add(progress, RecordType::kProgress);
    progress.time_ns = 0;  // a clock that goes backwards
    progress.oldest_time_ns = 1;
    progress.oldest_index = 0;
    packet.add(progress, RecordType::kProgress);
    attack.feed(wire, packet.finish(index, c % 2 == 0 ? kHuge : 0));
    index += 90;
  }
  attack.feed(wire, PacketBuilder().add(all_ones<wire::Books>(), RecordType::kBooks).finish());
  // The same from a clock that is not ours.
  wire::Hello hello = make_hello(12345);
  hello.realtime_offset_ns = std::numeric_limits<std::int64_t>::min();
  hello.start_time_ns = kHuge;
  for (const std::uint64_t send_time : {kHuge, std::uint64_t{1} << 63, std::uint64_t{0}}) {
    attack.wires.push_back(attack.node.connect(0, kAttacker, true));
    Wire& claimed = *attack.wires.back();
    attack.feed(claimed, PacketBuilder().hello(hello).finish(0, send_time));
    attack.feed(claimed, PacketBuilder()
                             .init(make_init(0, 1, 0, 2))
                             .progress(0, send_time, 0, send_time)
                             .operations(3)
                             .finish(1, kHuge - send_time));
  }
  for (const std::uint64_t at : {kHuge, std::uint64_t{1} << 63, std::uint64_t{1} << 62}) {
    attack.feed(attack.open({{StringKey::kSlurmJobId, "absurd"}}),
                PacketBuilder().init(make_init(0, 1, 0, 2)).operations(3).finish(at));
  }
}

void invented_gpus(Attack& attack) {
  Wire& wire = attack.open();
  for (unsigned i = 0; i < 256; ++i) {
    constexpr char kHex[] = "0123456789abcdef";
    const std::string id = std::string("0000:") + kHex[i / 16] + kHex[i % 16] + ":00.0";
    attack.feed(wire, PacketBuilder()
                          .init(make_init(static_cast<std::uint16_t>(i), 100 + i, 0, 2),
                                {{StringKey::kGpuPciBusId, id}})
                          .finish());
  }
}

void unfinished_plans(Attack& attack) {
  Wire& wire = attack.open();
  for (std::uint16_t c = 0; c < 40; ++c) {
    PacketBuilder packet;
    packet.init(make_init(c, 1000u + c, 0, 2));
    packet.operations(400, {.communicator = c, .plan = 5});
    attack.feed(wire, packet.finish(1u + c * 400u));
  }
}

void churn(Attack& attack) {
  Wire& wire = attack.open();
  for (std::uint64_t i = 0; i < 500; ++i) {
    attack.feed(wire, PacketBuilder()
                          .init(make_init(0, 500 + i, 0, 2))
                          .operation()
                          .finalize(static_cast<std::uint16_t>(i % 2))
                          .finish(1 + 2 * i));
  }
}

void neighbours(Attack& attack) {
  struct {
    wire::Neighbours head;
    wire::Neighbour peers[200];
  } record{};
  for (int i = 0; i < 200; ++i) record.peers[i].peer = -i;
  record.head.count = 200;
  Wire& liar = attack.open();
  EXPECT_FALSE(liar.feed(PacketBuilder().add(record.head, RecordType::kNeighbours).finish()));
  wire::set_header(record.head, RecordType::kNeighbours, sizeof record);
  std::vector<std::byte> buffer(wire::kMaxFrameBytes);
  wire::FrameWriter writer(buffer);
  writer.add_bytes(std::as_bytes(std::span(&record, 1)));
  const auto packet = writer.finish(0, 1);
  Wire& wire = attack.open();
  attack.feed(wire, PacketBuilder().init(make_init(0, 5, 0, 2)).finish());
  attack.feed(wire, {packet.begin(), packet.end()});
}

void garbage(Attack& attack) {
  std::uint32_t random = 1u + static_cast<std::uint32_t>(attack.step);
  for (int i = 0; i < 50; ++i) {
    Wire& wire = attack.open();
    Packet packet = PacketBuilder().init(make_init(0, 5, 0, 2)).operations(20).finish(1);
    for (int n = 0; n < 10; ++n) {
      random = random * 1664525u + 1013904223u;
      packet[(random >> 8) % packet.size()] = static_cast<std::byte>(random >> 24);
    }
    attack.feed(wire, packet);
  }
}

void everything(Attack& attack) {
  if (attack.step % 2 == 0) many_sessions(attack);
  hostile_strings(attack);
  identifiers_of_the_victim(attack);
  absurd_numbers(attack);
  many_communicators(attack);
  unfinished_plans(attack);
  garbage(attack);
}

struct Case {
  const char* name;
  void (*act)(Attack&);
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class HostileTenant : public ::testing::TestWithParam<Case> {};

TEST_P(HostileTenant, LeavesTheVictimsSeriesAsTheyWere) {
  static const std::string alone = of_victim(life({}));
  ASSERT_GT(std::count(alone.begin(), alone.end(), '\n'), 30);
  const std::string beside = life(GetParam().act);
  EXPECT_EQ(of_victim(beside), alone);
  expect_well_formed(beside);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileTenant,
    ::testing::Values(Case{"flood", flood}, Case{"many_sessions", many_sessions},
                      Case{"several_greedy_users", several_greedy_users},
                      Case{"many_communicators", many_communicators},
                      Case{"identifiers_of_the_victim", identifiers_of_the_victim},
                      Case{"hostile_strings", hostile_strings},
                      Case{"oversized_strings", oversized_strings},
                      Case{"absurd_numbers", absurd_numbers}, Case{"invented_gpus", invented_gpus},
                      Case{"unfinished_plans", unfinished_plans}, Case{"churn", churn},
                      Case{"neighbours", neighbours}, Case{"garbage", garbage},
                      Case{"everything", everything}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ncclscope::agent
